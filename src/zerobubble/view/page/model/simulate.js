// When does every op run? As simulate.py: as early as its rank's order and its input allow.

function readCosts(values) {
  const { ranks_per_engine: shared = 1, ...given } = values;
  const none = given.forward.map(() => 0);
  const all = {
    ...{ offload: none, load: none, recompute: given.forward },
    ...{ activation_offloaded: given.activation, activation_input: none, ...given },
  };
  const costs = Object.fromEntries(
    Object.entries(all).map(([name, numbers]) => [name, Float64Array.from(numbers)]),
  );
  return { ...costs, ranks_per_engine: shared };
}

// Where no transfer takes time, its factor counts in mean forwards, else it would do nothing.
function scaleCosts(costs, factors) {
  const times = (numbers, factor) => numbers.map((value) => value * factor);
  const hasTransfer = costs.transfer.some((value) => value > 0);
  const meanForward = costs.forward.reduce((sum, value) => sum + value, 0) / costs.forward.length;
  const transfer = hasTransfer ? costs.transfer : costs.forward.map(() => meanForward);
  return {
    ...costs,
    forward: times(costs.forward, factors.F),
    recompute: times(costs.recompute, factors.F),
    offload: times(costs.offload, factors.copy),
    load: times(costs.load, factors.copy),
    backward_input: times(costs.backward_input, factors.B),
    backward_weight: times(costs.backward_weight, factors.W),
    transfer: times(transfer, factors.comm),
    activation_kept: costs.activation_kept.map((value, stage) =>
      Math.min(value * factors.kept, costs.activation[stage]),
    ),
  };
}

function neutralFactors(costs) {
  return { F: 1, B: 1, W: 1, comm: costs.transfer.some((value) => value > 0) ? 1 : 0, kept: 1, copy: 1 };
}

function duration(costs, kind, stage) {
  if (kind === F) return costs.forward[stage];
  if (kind === B) return costs.backward_input[stage];
  if (kind === W) return costs.backward_weight[stage];
  if (kind === O) return costs.offload[stage];
  if (kind === L) return costs.load[stage];
  if (kind === R) return costs.recompute[stage];
  return costs.backward_input[stage] + costs.backward_weight[stage];
}

// What op i adds to the memory of its rank; an F that is run again holds only its input.
function memoryChange(schedule, costs, i) {
  const [kind, stage] = [schedule.kinds[i], schedule.stages[i]];
  const again = costs.activation[stage] - costs.activation_input[stage];
  const isRepeated = kind === F && schedule.place(R, stage, schedule.microbatches[i]) >= 0;
  if (kind === R) return again;
  if (kind === O) return -costs.activation_offloaded[stage];
  if (kind === L) return costs.activation_offloaded[stage];
  if (kind === F) return isRepeated ? costs.activation[stage] - again : costs.activation[stage];
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
  const ranks = Array.from({ length: schedule.numRanks }, (_, rank) => rank);
  const events = eventsOf(schedule);
  const alone = runInOrder(schedule, costs, events, ranks);
  const shared = costs.ranks_per_engine;
  if (!schedule.hasCopies || shared === 1) return alone;
  const turns = events.slice().sort((a, b) => alone.times[a] - alone.times[b]);
  return runInOrder(schedule, costs, turns, ranks.map((rank) => Math.floor(rank / shared)));
}

// As copy_engines.py: a copy is an event of its own, behind its F or behind the place of its L.
function eventsOf({ order, kinds, stages, microbatches, place, numOps, hasCopies }) {
  if (!hasCopies) return order;
  const events = [];
  for (const i of order) {
    events.push(i);
    const copy = kinds[i] === F ? place(O, stages[i], microbatches[i]) : kinds[i] === L ? i : -1;
    if (copy >= 0) events.push(copy + numOps);
  }
  return events;
}

function runInOrder(schedule, costs, events, engines) {
  const { needs, loads, ranks, kinds, stages, numOps } = schedule;
  const [start, end] = [0, 0].map(() => new Float64Array(numOps));
  const times = new Float64Array(2 * numOps);
  const [free, freeOut, freeIn] = [0, 0, 0].map(() => new Float64Array(schedule.numRanks));
  const run = (event, i, begin) => {
    times[event] = start[i] = begin;
    end[i] = begin + duration(costs, kinds[i], stages[i]);
    return end[i];
  };
  for (const event of events) {
    const i = event % numOps;
    const [rank, engine] = [ranks[i], engines[ranks[i]]];
    if (event >= numOps) {
      const freeEngine = kinds[i] === O ? freeOut : freeIn;
      const reached = kinds[i] === O ? 0 : times[i];
      const begin = Math.max(end[needs[i]], freeEngine[engine], reached);
      freeEngine[engine] = run(event, i, begin);
    } else if (kinds[i] === O) {
      times[i] = free[rank] = Math.max(free[rank], end[i]);
    } else if (kinds[i] === L) {
      times[i] = free[rank];
    } else {
      let begin = free[rank];
      if (needs[i] >= 0) begin = Math.max(begin, end[needs[i]] + travelTime(schedule, costs, i));
      if (loads[i] >= 0) begin = Math.max(begin, end[loads[i]]);
      free[rank] = run(i, i, begin);
    }
  }
  return { start, end, arrived: null, times };
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
    for (const i of schedule.tracks[rank][COMPUTED]) sum += end[i] - start[i];
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
