// Where does the time of a timeline go? The definitions are those of view/facts.py.

const CAUSES = ["warm-up", "drain", "transfer", "memory limit", "late start"];
const [WARM_UP, DRAIN, TRANSFER, MEMORY, LATE] = [0, 1, 2, 3, 4];
const [NOTHING, INPUT, ORDER, LOAD] = [0, 1, 2, 3];
const COPIES = { [O]: "the copy to the host", [L]: "the copy back" };

function findFacts(schedule, costs, timeline, limits) {
  const facts = { schedule, costs, timeline, limits };
  const lasts = lastOps(schedule);
  const firsts = lasts.map((i) => schedule.offsets[schedule.ranks[i]]);
  facts.origin = Math.min(...firsts.map((i) => timeline.start[i]));
  facts.finish = Math.max(...lasts.map((i) => timeline.end[i]));
  facts.tiny = 1e-9 * (facts.finish - facts.origin);
  addTurns(facts);
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

// What each op comes after, as waits.py: what its rank computed before, what it was busy with
// before (of a copy, the one before on its engine), and the op whose output it needs.
function addTurns(facts) {
  const { schedule, costs, timeline } = facts;
  const { isFirst, numOps } = schedule;
  const [computed, turn] = [0, 0].map(() => new Int32Array(numOps).fill(-1));
  const needs = schedule.needs.slice();
  let [lastOp, last] = [-1, -1];
  for (let i = 0; i < numOps; i++) {
    if (isFirst[i]) [lastOp, last] = [-1, -1];
    [computed[i], turn[i]] = [lastOp, last];
    const track = trackOf(schedule, i);
    if (track === IN) needs[i] = last;
    if (track === OUT && (last < 0 || timeline.end[i] > timeline.end[last])) last = i;
    if (track === COMPUTED) lastOp = last = i;
  }
  facts.order = orderOfWaits(facts);
  for (const before of enginesOf(facts))
    before.forEach((copy, k) => (turn[copy] = k ? before[k - 1] : -1));
  Object.assign(facts, { computedBefore: computed, turn, needs, shared: costs.ranks_per_engine });
}

// All ops so that each comes behind what it waits for: O right behind its F.
function orderOfWaits({ schedule, costs, timeline }) {
  const { order, needs, numOps } = schedule;
  if (!schedule.hasCopies) return order;
  const asked = new Float64Array(numOps);
  order.forEach((i, k) => (asked[i] = k));
  for (const tracks of schedule.tracks) for (const i of tracks[OUT]) asked[i] = asked[needs[i]] + 0.5;
  const { start, end } = timeline;
  const begun = (a, b) => (costs.ranks_per_engine > 1 ? start[a] - start[b] || end[a] - end[b] : 0);
  return order.slice().sort((a, b) => begun(a, b) || asked[a] - asked[b]);
}

// The copies of every engine, in turn.
function enginesOf({ schedule, costs, order }) {
  if (!schedule.hasCopies) return [];
  const engines = new Map();
  for (const i of order) {
    if (!isCopy(schedule, i)) continue;
    const engine = Math.floor(schedule.ranks[i] / costs.ranks_per_engine);
    const name = `${engine} ${trackOf(schedule, i)}`;
    if (!engines.has(name)) engines.set(name, []);
    engines.get(name).push(i);
  }
  return [...engines.values()];
}

function addWaits(facts) {
  const { schedule, costs, timeline, tiny } = facts;
  const { ranks, loads, numOps } = schedule;
  for (const name of ["computed", "free", "made", "inputThere", "loaded", "allThere"])
    facts[name] = new Float64Array(numOps);
  for (const name of ["waitForInput", "waitForRank", "late"]) facts[name] = new Float64Array(numOps);
  facts.waitedFor = new Uint8Array(numOps);
  const endOf = (i) => (i >= 0 ? timeline.end[i] : facts.origin);
  for (let i = 0; i < numOps; i++) {
    const [start, need, free] = [timeline.start[i], facts.needs[i], endOf(facts.turn[i])];
    let there = endOf(need) + (isCopy(schedule, i) ? 0 : travelTime(schedule, costs, i));
    const travels = need >= 0 && ranks[need] !== ranks[i];
    const measured = timeline.arrived ? timeline.arrived[need] : NaN;
    if (travels && !Number.isNaN(measured) && there > free) there = measured;
    const loaded = endOf(loads[i]);
    const all = Math.max(there, loaded);
    facts.computed[i] = endOf(facts.computedBefore[i]);
    facts.free[i] = free;
    facts.made[i] = endOf(need);
    facts.inputThere[i] = there;
    facts.loaded[i] = loaded;
    facts.allThere[i] = all;
    const input = loaded > there ? LOAD : INPUT;
    facts.waitedFor[i] = all - free > tiny ? input : free - all > tiny ? ORDER : NOTHING;
    facts.waitForInput[i] = fromZero(Math.min(all, start) - free, tiny);
    facts.waitForRank[i] = fromZero(Math.min(free, start) - all, tiny);
    facts.late[i] = fromZero(start - Math.max(free, all), tiny);
  }
}

function addMemory(facts) {
  const { schedule, costs, timeline } = facts;
  for (const name of ["memoryBefore", "memoryAfter", "memoryTimes"])
    facts[name] = new Float64Array(schedule.numOps);
  facts.peaks = [];
  for (let rank = 0; rank < schedule.numRanks; rank++) {
    let memory = 0;
    let peak = null;
    let passed = -Infinity;
    for (let i = schedule.offsets[rank]; i < schedule.offsets[rank + 1]; i++) {
      facts.memoryBefore[i] = memory;
      memory += memoryChange(schedule, costs, i);
      facts.memoryAfter[i] = memory;
      if (schedule.kinds[i] !== L) passed = Math.max(passed, timeline.end[i]);
      facts.memoryTimes[i] = memoryTime(schedule, timeline, i, passed);
      if (!peak || memory > peak.memory) peak = { op: i, memory, start: facts.memoryTimes[i] };
    }
    facts.peaks.push(peak);
  }
}

// F and R allocate as they start, others free as they end; copies count as the compute passes them.
function memoryTime(schedule, timeline, i, passed) {
  if (isCopy(schedule, i)) return passed;
  const allocates = schedule.kinds[i] === F || schedule.kinds[i] === R;
  return allocates ? timeline.start[i] : timeline.end[i];
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
      const needed = facts.memoryBefore[i] + memoryChange(schedule, costs, forward);
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
  const { offsets, kinds, stages, numStages, tracks, loads } = schedule;
  const held = heldByMemory(facts);
  const idle = { start: [], end: [], cause: [], offsets: [0] };
  const add = (start, end, cause) => {
    if (!(end - start > facts.tiny)) return;
    idle.start.push(start);
    idle.end.push(end);
    idle.cause.push(cause);
  };
  const clip = (value, low, high) => Math.min(Math.max(value, low), Math.max(high, low));
  const waitsFor = (need) => CAUSES.length + kinds[need] * numStages + stages[need];
  for (let rank = 0; rank < schedule.numRanks; rank++) {
    const [first, end] = [offsets[rank], offsets[rank + 1]];
    if (first < end) add(facts.origin, timeline.start[first], WARM_UP);
    for (const i of tracks[rank][COMPUTED]) {
      if (i === first) continue;
      const start = timeline.start[i];
      const free = clip(facts.free[i], facts.computed[i], start);
      const made = clip(facts.made[i], free, start);
      const there = clip(facts.inputThere[i], made, start);
      const loaded = clip(facts.loaded[i], there, start);
      add(facts.computed[i], free, waitsFor(facts.turn[i]));
      add(free, made, held[i] ? MEMORY : waitsFor(facts.needs[i]));
      add(made, there, TRANSFER);
      add(there, loaded, waitsFor(loads[i]));
      add(loaded, start, LATE);
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
  if (kind in COPIES) return `waits for ${COPIES[kind]} of stage ${stage}`;
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
  const { schedule, timeline, order, turn, needs } = facts;
  const { loads, isFirst, ranks, numOps } = schedule;
  const latest = new Float64Array(numOps);
  for (let i = 0; i < numOps; i++) latest[i] = deadline(ranks[i]);
  const lower = (i, time) => {
    if (i >= 0) latest[i] = Math.min(latest[i], time);
  };
  for (let k = numOps - 1; k >= 0; k--) {
    const i = order[k];
    const begin = latest[i] - (timeline.end[i] - timeline.start[i]);
    const there = Math.min(facts.inputThere[i], timeline.start[i]);
    lower(needs[i], begin - Math.max(there - facts.made[i], 0));
    lower(loads[i], begin);
    if (isCopy(schedule, i)) lower(turn[i], begin);
    if (trackOf(schedule, i) === OUT) continue;
    // The compute comes past copies from the op before.
    for (let place = i; !isFirst[place]; ) {
      place--;
      if (trackOf(schedule, place) !== IN) lower(place, begin);
      if (!isCopy(schedule, place)) break;
    }
  }
  return latest.map((end, i) => fromZero(end - timeline.end[i], facts.tiny));
}

function addPath(facts, lasts) {
  const { schedule, timeline, needs } = facts;
  const path = [];
  let i = lasts.reduce((best, last) => (timeline.end[last] > timeline.end[best] ? last : best));
  for (; i >= 0; i = latestBefore(facts, i)) path.push(i);
  facts.path = path.reverse();
  let [compute, transfer, copies] = [0, 0, 0];
  facts.path.forEach((op, k) => {
    const lasts = timeline.end[op] - timeline.start[op];
    if (isCopy(schedule, op)) copies += lasts;
    else compute += lasts;
    const previous = facts.path[k - 1];
    if (k && needs[op] === previous && schedule.ranks[previous] !== schedule.ranks[op]) {
      const there = Math.min(facts.inputThere[op], timeline.start[op]);
      transfer += Math.max(there - timeline.end[previous], 0);
    }
  });
  const wait = fromZero(facts.finish - facts.origin - compute - transfer - copies, facts.tiny);
  facts.split = { compute, transfer, copies, wait };
}

// What an op waited for longest, or -1.
function latestBefore(facts, i) {
  const { turn, needs, free, inputThere, loaded } = facts;
  const times = [[free[i], turn[i]], [inputThere[i], needs[i]], [loaded[i], facts.schedule.loads[i]]];
  const known = times.filter(([, before]) => before >= 0);
  return known.reduce((best, each) => (each[0] > best[0] ? each : best), [-Infinity, -1])[1];
}

// What an op itself lost against the plan: from when it could have started to its end, less the
// time it was planned to take. Waiting for others is their loss, not its own.
function lossOf(facts, planned, i) {
  const ready = Math.max(facts.free[i], facts.allThere[i]);
  const took = facts.timeline.end[i] - Math.min(ready, facts.timeline.start[i]);
  return took - (planned.timeline.end[i] - planned.timeline.start[i]);
}

function mostLost(facts, planned, count) {
  const losses = Array.from(facts.free, (_, i) => ({ op: i, lost: lossOf(facts, planned, i) }));
  losses.sort((a, b) => b.lost - a.lost || a.op - b.op);
  return losses.slice(0, count).filter(({ lost }) => lost > facts.tiny);
}
