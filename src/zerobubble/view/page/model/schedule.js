// What does a panel of the data hold? Its schedule as typed arrays over the ops of all ranks, rank
// after rank, as Schedule.flat in ir.py, and which op needs which, as graph.py.

const KINDS = ["F", "B", "W", "BW", "O", "L", "R"];
const [F, B, W, BW, O, L, R] = [0, 1, 2, 3, 4, 5, 6];
// What a rank computes, its copies to the host, its copies back: each one after the other.
const [COMPUTED, OUT, IN] = [0, 1, 2];

function decodeArray(text, Type, name) {
  let characters = "";
  try {
    characters = atob(text);
  } catch {
    throw new Error(`${name} is damaged`);
  }
  require(characters.length % Type.BYTES_PER_ELEMENT === 0, `${name} is cut`);
  const bytes = new Uint8Array(characters.length);
  for (let k = 0; k < bytes.length; k++) bytes[k] = characters.charCodeAt(k);
  return new Type(bytes.buffer);
}

function readSchedule(panel) {
  const codes = decodeArray(panel.codes, Int32Array, "codes");
  const offsets = [0];
  for (const length of panel.lengths) offsets.push(offsets.at(-1) + length);
  require(offsets.at(-1) === codes.length, `it has ${codes.length} ops, not ${offsets.at(-1)}`);
  const schedule = {
    name: panel.name,
    stageToRank: panel.placement,
    numStages: panel.placement.length,
    numRanks: panel.lengths.length,
    numMicrobatches: panel.num_microbatches,
    numOps: codes.length,
    codes,
    offsets,
  };
  schedule.turnOfStage = panel.placement.map(
    (rank, stage) => panel.placement.slice(0, stage).filter((other) => other === rank).length,
  );
  checkCodes(schedule);
  addFields(schedule);
  addNeeds(schedule);
  addRunOrder(schedule);
  addTracks(schedule);
  return schedule;
}

function addFields(schedule) {
  const { codes, offsets, numOps, numStages, numMicrobatches } = schedule;
  schedule.kinds = new Uint8Array(numOps);
  schedule.stages = new Int32Array(numOps);
  schedule.microbatches = new Int32Array(numOps);
  schedule.ranks = new Int32Array(numOps);
  schedule.isFirst = new Uint8Array(numOps);
  for (let rank = 0; rank < schedule.numRanks; rank++) {
    schedule.ranks.fill(rank, offsets[rank], offsets[rank + 1]);
    if (offsets[rank] < offsets[rank + 1]) schedule.isFirst[offsets[rank]] = 1;
  }
  for (let i = 0; i < numOps; i++) {
    const row = Math.floor(codes[i] / numMicrobatches);
    schedule.microbatches[i] = codes[i] - row * numMicrobatches;
    schedule.kinds[i] = Math.floor(row / numStages);
    schedule.stages[i] = row % numStages;
  }
}

function addNeeds(schedule) {
  const { codes, kinds, stages, microbatches, numOps, numStages, numMicrobatches } = schedule;
  const places = new Int32Array(KINDS.length * numStages * numMicrobatches).fill(-1);
  for (let i = 0; i < numOps; i++) places[codes[i]] = i;
  const place = (kind, stage, microbatch) =>
    places[(kind * numStages + stage) * numMicrobatches + microbatch];
  const backward = (stage, microbatch) => {
    const fused = place(BW, stage, microbatch);
    return fused >= 0 ? fused : place(B, stage, microbatch);
  };
  const need = (kind, stage, microbatch) => {
    if (kind === R) return -1;
    if (kind === L) return place(O, stage, microbatch);
    if (kind === O) return place(F, stage, microbatch);
    if (kind === W) return place(B, stage, microbatch);
    if (kind === F) return stage > 0 ? place(F, stage - 1, microbatch) : -1;
    return stage < numStages - 1 ? backward(stage + 1, microbatch) : place(F, stage, microbatch);
  };
  schedule.place = place;
  schedule.needs = new Int32Array(numOps);
  for (let i = 0; i < numOps; i++) schedule.needs[i] = need(kinds[i], stages[i], microbatches[i]);
  const isInput = (i) => kinds[i] === R || (kinds[i] === F && stages[i] === 0);
  const missing = schedule.needs.findIndex((need, i) => need < 0 && !isInput(i));
  require(missing < 0, `${missing < 0 || opName(schedule, missing)} needs an op that is missing`);
  addLoads(schedule);
}

// The copy back that a backward reads, which stands before it.
function addLoads(schedule) {
  const { kinds, stages, microbatches, numOps, place } = schedule;
  schedule.loads = new Int32Array(numOps).fill(-1);
  for (let i = 0; i < numOps; i++) {
    if (kinds[i] !== B && kinds[i] !== BW) continue;
    const load = place(L, stages[i], microbatches[i]);
    require(load < i, `${opName(schedule, i)} runs before what it reads is back`);
    schedule.loads[i] = load;
  }
}

function trackOf(schedule, i) {
  return schedule.kinds[i] === O ? OUT : schedule.kinds[i] === L ? IN : COMPUTED;
}

function isCopy(schedule, i) {
  return trackOf(schedule, i) !== COMPUTED;
}

// For each rank, its ops by track, each in the order of their times: O in that of their forwards.
function addTracks(schedule) {
  const { offsets, numRanks, needs } = schedule;
  schedule.tracks = Array.from({ length: numRanks }, (_, rank) => {
    const tracks = [[], [], []];
    for (let i = offsets[rank]; i < offsets[rank + 1]; i++) tracks[trackOf(schedule, i)].push(i);
    tracks[OUT].sort((a, b) => needs[a] - needs[b]);
    return tracks.map((ops) => Int32Array.from(ops));
  });
  schedule.hasCopies = schedule.tracks.some((tracks) => tracks[OUT].length > 0);
}

// Ranks run as far as they can; one that has to wait stands in the line of the op it waits for.
function addRunOrder(schedule) {
  const { offsets, needs, numOps, numRanks } = schedule;
  const order = new Int32Array(numOps);
  const positions = offsets.slice(0, -1);
  const done = new Uint8Array(numOps);
  const waiting = new Map();
  const runnable = Array.from({ length: numRanks }, (_, rank) => numRanks - 1 - rank);
  let count = 0;
  while (runnable.length) {
    const rank = runnable.pop();
    for (; positions[rank] < offsets[rank + 1]; positions[rank]++) {
      const i = positions[rank];
      if (needs[i] >= 0 && !done[needs[i]]) {
        if (!waiting.has(needs[i])) waiting.set(needs[i], []);
        waiting.get(needs[i]).push(rank);
        break;
      }
      done[i] = 1;
      order[count++] = i;
      if (waiting.has(i)) runnable.push(...waiting.get(i));
    }
  }
  if (count < numOps) throw new Error(`${schedule.name}: ops wait for each other in a circle`);
  schedule.order = order;
}

function opName(schedule, i) {
  return `${KINDS[schedule.kinds[i]]}${schedule.microbatches[i]} of stage ${schedule.stages[i]}`;
}
