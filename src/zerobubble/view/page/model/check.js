// Is the data of a panel whole? What is not is told in words that name the place.

const COST_NAMES = [
  ...["forward", "backward_input", "backward_weight", "transfer"],
  ...["activation", "activation_kept"],
];
const COPY_COSTS = [
  ...["offload", "load", "recompute", "activation_offloaded", "activation_input"],
];
const MOST_RANKS = 100_000;

function require(isRight, problem) {
  if (!isRight) throw new Error(problem);
}

function isCount(value, least, most = Number.MAX_SAFE_INTEGER) {
  return Number.isSafeInteger(value) && value >= least && value <= most;
}

function checkPanel(data) {
  require(data !== null && typeof data === "object", "a schedule is missing");
  for (const name of ["name", "unit", "note", "codes"])
    require(typeof data[name] === "string", `${name} is no text`);
  const { lengths, placement } = data;
  const isLengths = Array.isArray(lengths) && lengths.length > 0 && lengths.length <= MOST_RANKS;
  require(isLengths && lengths.every((each) => isCount(each, 0)), "lengths are no numbers of ops");
  const isRank = (rank) => isCount(rank, 0, lengths.length - 1);
  const isPlacement = Array.isArray(placement) && placement.length > 0;
  require(isPlacement && placement.every(isRank), "placement names no rank for a stage");
  require(isCount(data.num_microbatches, 1), "num_microbatches is no number of 1 or more");
  checkCosts(data.costs, placement.length);
  const { limits } = data;
  const isLimit = (limit) => limit === null || (Number.isFinite(limit) && limit > 0);
  const isLimits = Array.isArray(limits) && limits.length === lengths.length;
  const problem = "limits are not one number above 0 for each rank";
  require(limits === null || (isLimits && limits.every(isLimit)), problem);
  const isStep = data.measured === null || isCount(data.measured?.number, 0);
  require(isStep, "measured has no number of its step");
}

function checkCosts(costs, numStages) {
  require(costs !== null && typeof costs === "object", "costs are missing");
  const isCost = (value) => Number.isFinite(value) && value >= 0;
  const given = COPY_COSTS.filter((name) => name in costs);
  for (const name of [...COST_NAMES, ...given]) {
    const isWhole = Array.isArray(costs[name]) && costs[name].length === numStages;
    const problem = `costs.${name} must be ${numStages} numbers of 0 or more, one for each stage`;
    require(isWhole && costs[name].every(isCost), problem);
  }
  const isEngine = isCount(costs.ranks_per_engine ?? 1, 1);
  require(isEngine, "costs.ranks_per_engine is no number of 1 or more");
}

// Every op stands once, and on the rank that holds its stage.
function checkCodes(schedule) {
  const { codes, offsets, numRanks, numStages, numMicrobatches, stageToRank } = schedule;
  require(codes.length > 0, "it has no op");
  const numCodes = KINDS.length * numStages * numMicrobatches;
  const isComplete = numCodes <= KINDS.length * codes.length;
  require(isComplete, `num_microbatches is ${numMicrobatches}, too many for ${codes.length} ops`);
  const seen = new Uint8Array(numCodes);
  for (let rank = 0; rank < numRanks; rank++) {
    for (const code of codes.subarray(offsets[rank], offsets[rank + 1])) {
      require(code >= 0 && code < numCodes, `codes has ${code}, which is no op of this schedule`);
      const stage = Math.floor(code / numMicrobatches) % numStages;
      require(stageToRank[stage] === rank, `rank ${rank} has an op of stage ${stage}, not its own`);
      require(!seen[code], `rank ${rank} has an op twice`);
      seen[code] = 1;
    }
  }
}

function checkMeasured(schedule, start, end, arrived) {
  const { numOps, tracks } = schedule;
  for (const [name, times] of Object.entries({ start, end, arrived })) {
    const problem = `measured.${name} has ${times?.length} times for ${numOps} ops`;
    require(times === null || times.length === numOps, problem);
  }
  for (let i = 0; i < numOps; i++) {
    const isTime = Number.isFinite(start[i]) && Number.isFinite(end[i]);
    require(isTime && Math.abs(arrived?.[i] ?? 0) !== Infinity, `op ${i} has no measured time`);
    require(end[i] >= start[i], `the measured times of op ${i} fall`);
  }
  for (const ops of tracks.flat())
    for (let k = 1; k < ops.length; k++)
      require(start[ops[k]] >= end[ops[k - 1]], `the measured times of op ${ops[k]} fall`);
}
