// Where does the time of a timeline go? The definitions are those of view/facts.py.

const CAUSES = ["warm-up", "drain", "transfer", "memory limit", "late start"];
const [WARM_UP, DRAIN, TRANSFER, MEMORY, LATE] = [0, 1, 2, 3, 4];
const [NOTHING, INPUT, ORDER] = [0, 1, 2];

function findFacts(schedule, costs, timeline, limits) {
  const facts = { schedule, costs, timeline, limits };
  const lasts = lastOps(schedule);
  const firsts = lasts.map((i) => schedule.offsets[schedule.ranks[i]]);
  facts.origin = Math.min(...firsts.map((i) => timeline.start[i]));
  facts.finish = Math.max(...lasts.map((i) => timeline.end[i]));
  facts.tiny = 1e-9 * (facts.finish - facts.origin);
  addWaits(facts);
  addMemory(facts);
  addIdle(facts);
  addSlack(facts);
  addPath(facts, lasts);
  return facts;
}

function lastOps(schedule) {
  const ends = schedule.offsets.slice(1).map((end) => end - 1);
  return ends.filter((last, rank) => last >= schedule.offsets[rank]);
}

// Negative times and those that are mere rounding count as none.
function fromZero(time, tiny) {
  return time > tiny ? time : 0;
}

function addWaits(facts) {
  const { schedule, costs, timeline, tiny } = facts;
  const { needs, ranks, isFirst, numOps } = schedule;
  for (const name of ["free", "made", "inputThere", "waitForInput", "waitForRank", "late"])
    facts[name] = new Float64Array(numOps);
  facts.waitedFor = new Uint8Array(numOps);
  for (let i = 0; i < numOps; i++) {
    const start = timeline.start[i];
    const free = isFirst[i] ? facts.origin : timeline.end[i - 1];
    const made = needs[i] >= 0 ? timeline.end[needs[i]] : facts.origin;
    let there = made + travelTime(schedule, costs, i);
    const travels = needs[i] >= 0 && ranks[needs[i]] !== ranks[i];
    const measured = timeline.arrived ? timeline.arrived[needs[i]] : NaN;
    if (travels && !Number.isNaN(measured) && there > free) there = measured;
    facts.free[i] = free;
    facts.made[i] = made;
    facts.inputThere[i] = there;
    facts.waitedFor[i] = there - free > tiny ? INPUT : free - there > tiny ? ORDER : NOTHING;
    facts.waitForInput[i] = fromZero(Math.min(there, start) - free, tiny);
    facts.waitForRank[i] = fromZero(Math.min(free, start) - there, tiny);
    facts.late[i] = fromZero(start - Math.max(free, there), tiny);
  }
}

function addMemory(facts) {
  const { schedule, costs, timeline } = facts;
  facts.memoryBefore = new Float64Array(schedule.numOps);
  facts.memoryAfter = new Float64Array(schedule.numOps);
  facts.peaks = [];
  for (let rank = 0; rank < schedule.numRanks; rank++) {
    let memory = 0;
    let peak = null;
    for (let i = schedule.offsets[rank]; i < schedule.offsets[rank + 1]; i++) {
      facts.memoryBefore[i] = memory;
      memory += memoryChange(costs, schedule.kinds[i], schedule.stages[i]);
      facts.memoryAfter[i] = memory;
      if (!peak || memory > peak.memory) peak = { op: i, memory, start: timeline.start[i] };
    }
    facts.peaks.push(peak);
  }
}

// Whether a forward could have run before an op but for the memory limit, and no W.
function heldByMemory(facts) {
  const { schedule, costs, limits } = facts;
  const held = new Uint8Array(schedule.numOps);
  if (!limits) return held;
  for (let rank = 0; rank < schedule.numRanks; rank++) {
    const [first, end] = [schedule.offsets[rank], schedule.offsets[rank + 1]];
    let waiting = 0;
    for (let i = first; i < end; i++) waiting += weightsLeft(schedule.kinds[i]);
    for (let i = end - 1, forward = -1; i >= first; i--) {
      if (schedule.kinds[i] === F) forward = i;
      waiting -= weightsLeft(schedule.kinds[i]);
      const isThere = forward >= 0 && facts.inputThere[forward] <= facts.free[i] + facts.tiny;
      if (!isThere || waiting !== 0) continue;
      const needed = facts.memoryBefore[i] + costs.activation[schedule.stages[forward]];
      held[i] = needed > (limits[rank] ?? Infinity) * (1 + 1e-9) ? 1 : 0;
    }
  }
  return held;
}

function weightsLeft(kind) {
  return kind === B ? 1 : kind === W ? -1 : 0;
}

function addIdle(facts) {
  const { schedule, timeline } = facts;
  const { offsets, needs, kinds, stages, numStages } = schedule;
  const held = heldByMemory(facts);
  const idle = { start: [], end: [], cause: [], offsets: [0] };
  const add = (start, end, cause) => {
    if (!(end - start > facts.tiny)) return;
    idle.start.push(start);
    idle.end.push(end);
    idle.cause.push(cause);
  };
  const clip = (value, low, high) => Math.min(Math.max(value, low), Math.max(high, low));
  for (let rank = 0; rank < schedule.numRanks; rank++) {
    const [first, end] = [offsets[rank], offsets[rank + 1]];
    if (first < end) add(facts.origin, timeline.start[first], WARM_UP);
    for (let i = first + 1; i < end; i++) {
      const start = timeline.start[i];
      const made = clip(facts.made[i], facts.free[i], start);
      const there = clip(facts.inputThere[i], made, start);
      const waits = CAUSES.length + kinds[needs[i]] * numStages + stages[needs[i]];
      add(facts.free[i], made, held[i] ? MEMORY : waits);
      add(made, there, TRANSFER);
      add(there, start, LATE);
    }
    if (first < end) add(timeline.end[end - 1], facts.finish, DRAIN);
    idle.offsets.push(idle.start.length);
  }
  facts.idle = idle;
}

function causeName(schedule, cause) {
  if (cause < CAUSES.length) return CAUSES[cause];
  const kind = Math.floor((cause - CAUSES.length) / schedule.numStages);
  const stage = (cause - CAUSES.length) % schedule.numStages;
  return `waits for ${KINDS[kind]} of stage ${stage} on rank ${schedule.stageToRank[stage]}`;
}

// For each rank pairs of cause and time, longest first.
function idleByCause(facts) {
  const { idle, schedule } = facts;
  return Array.from({ length: schedule.numRanks }, (_, rank) => {
    const sums = new Map();
    for (let k = idle.offsets[rank]; k < idle.offsets[rank + 1]; k++)
      sums.set(idle.cause[k], (sums.get(idle.cause[k]) ?? 0) + idle.end[k] - idle.start[k]);
    return [...sums].sort((a, b) => b[1] - a[1] || a[0] - b[0]);
  });
}

function addSlack(facts) {
  const { schedule, timeline } = facts;
  const spans = [];
  for (const last of lastOps(schedule)) {
    const first = schedule.offsets[schedule.ranks[last]];
    spans.push(timeline.end[last] - timeline.start[first]);
  }
  const span = Math.max(...spans);
  facts.slack = slackUntil(facts, () => facts.finish);
  facts.spanSlack = slackUntil(facts, (rank) => timeline.start[schedule.offsets[rank]] + span);
}

function slackUntil(facts, deadline) {
  const { schedule, timeline } = facts;
  const { order, needs, isFirst, ranks, numOps } = schedule;
  const latest = new Float64Array(numOps);
  for (let i = 0; i < numOps; i++) latest[i] = deadline(ranks[i]);
  for (let k = numOps - 1; k >= 0; k--) {
    const i = order[k];
    const begin = latest[i] - (timeline.end[i] - timeline.start[i]);
    if (!isFirst[i]) latest[i - 1] = Math.min(latest[i - 1], begin);
    if (needs[i] < 0) continue;
    const there = Math.min(facts.inputThere[i], timeline.start[i]);
    const travel = Math.max(there - facts.made[i], 0);
    latest[needs[i]] = Math.min(latest[needs[i]], begin - travel);
  }
  return latest.map((end, i) => fromZero(end - timeline.end[i], facts.tiny));
}

function addPath(facts, lasts) {
  const { schedule, timeline } = facts;
  const { needs, isFirst, ranks } = schedule;
  const path = [];
  let i = lasts.reduce((best, last) => (timeline.end[last] > timeline.end[best] ? last : best));
  while (i >= 0) {
    path.push(i);
    const before = isFirst[i] ? -1 : i - 1;
    const later = needs[i] >= 0 && (before < 0 || facts.inputThere[i] > facts.free[i]);
    i = later ? needs[i] : before;
  }
  facts.path = path.reverse();
  let [compute, transfer] = [0, 0];
  facts.path.forEach((op, k) => {
    compute += timeline.end[op] - timeline.start[op];
    const previous = facts.path[k - 1];
    if (k && ranks[previous] !== ranks[op]) {
      const there = Math.min(facts.inputThere[op], timeline.start[op]);
      transfer += Math.max(there - timeline.end[previous], 0);
    }
  });
  const wait = fromZero(facts.finish - facts.origin - compute - transfer, facts.tiny);
  facts.split = { compute, transfer, wait };
}

// What an op itself lost against the plan: from when it could have started to its end, less the
// time it was planned to take. Waiting for others is their loss, not its own.
function lossOf(facts, planned, i) {
  const ready = Math.max(facts.free[i], facts.inputThere[i]);
  const took = facts.timeline.end[i] - Math.min(ready, facts.timeline.start[i]);
  return took - (planned.timeline.end[i] - planned.timeline.start[i]);
}

function mostLost(facts, planned, count) {
  const losses = Array.from(facts.free, (_, i) => ({ op: i, lost: lossOf(facts, planned, i) }));
  losses.sort((a, b) => b.lost - a.lost || a.op - b.op);
  return losses.slice(0, count).filter(({ lost }) => lost > facts.tiny);
}
