// When does every op run? As simulate.py: as early as its rank's order and its input allow.

function readCosts(values) {
  return Object.fromEntries(
    Object.entries(values).map(([name, numbers]) => [name, Float64Array.from(numbers)]),
  );
}

// Where no transfer takes time, its factor counts in mean forwards, else it would do nothing.
function scaleCosts(costs, factors) {
  const times = (numbers, factor) => numbers.map((value) => value * factor);
  const hasTransfer = costs.transfer.some((value) => value > 0);
  const meanForward = costs.forward.reduce((sum, value) => sum + value, 0) / costs.forward.length;
  const transfer = hasTransfer ? costs.transfer : costs.forward.map(() => meanForward);
  return {
    forward: times(costs.forward, factors.F),
    backward_input: times(costs.backward_input, factors.B),
    backward_weight: times(costs.backward_weight, factors.W),
    transfer: times(transfer, factors.comm),
    activation: costs.activation,
    activation_kept: costs.activation_kept.map((value, stage) =>
      Math.min(value * factors.kept, costs.activation[stage]),
    ),
  };
}

function neutralFactors(costs) {
  return { F: 1, B: 1, W: 1, comm: costs.transfer.some((value) => value > 0) ? 1 : 0, kept: 1 };
}

function duration(costs, kind, stage) {
  if (kind === F) return costs.forward[stage];
  if (kind === B) return costs.backward_input[stage];
  if (kind === W) return costs.backward_weight[stage];
  return costs.backward_input[stage] + costs.backward_weight[stage];
}

function memoryChange(costs, kind, stage) {
  if (kind === F) return costs.activation[stage];
  if (kind === B) return costs.activation_kept[stage] - costs.activation[stage];
  return kind === W ? -costs.activation_kept[stage] : -costs.activation[stage];
}

// How long the input of op i travels: nothing within a rank.
function travelTime(schedule, costs, i) {
  const need = schedule.needs[i];
  if (need < 0 || schedule.ranks[need] === schedule.ranks[i]) return 0;
  return costs.transfer[schedule.kinds[i] === F ? schedule.stages[i] - 1 : schedule.stages[i]];
}

function simulate(schedule, costs) {
  const { order, needs, ranks, kinds, stages, numOps } = schedule;
  const start = new Float64Array(numOps);
  const end = new Float64Array(numOps);
  const free = new Float64Array(schedule.numRanks);
  for (const i of order) {
    let begin = free[ranks[i]];
    if (needs[i] >= 0) begin = Math.max(begin, end[needs[i]] + travelTime(schedule, costs, i));
    start[i] = begin;
    end[i] = free[ranks[i]] = begin + duration(costs, kinds[i], stages[i]);
  }
  return { start, end, arrived: null };
}

// The numbers that the command line prints, under the names of its --json.
function summarize(schedule, timeline, facts) {
  const { offsets, numRanks } = schedule;
  const { start, end } = timeline;
  const bubble = (time, work) => (time > 0 ? (time - work) / time : 0);
  let [span, work] = [0, 0];
  for (let rank = 0; rank < numRanks; rank++) {
    const [first, last] = [offsets[rank], offsets[rank + 1] - 1];
    if (last < first) continue;
    span = Math.max(span, end[last] - start[first]);
    let sum = 0;
    for (let i = first; i <= last; i++) sum += end[i] - start[i];
    work = Math.max(work, sum);
  }
  const makespan = facts.finish - facts.origin;
  const peaks = facts.peaks.map((peak) => (peak ? Math.max(peak.memory, 0) : 0));
  return {
    span,
    makespan,
    bubble: bubble(span, work),
    bubble_makespan: bubble(makespan, work),
    peak_memory: Math.max(...peaks),
    peak_memory_per_rank: peaks,
  };
}
