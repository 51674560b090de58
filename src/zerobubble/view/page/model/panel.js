// What does one panel show? A schedule with its planned run and, if there is one, a measured run.

function readPanel(data) {
  checkPanel(data);
  const schedule = readSchedule(data);
  const costs = readCosts(data.costs);
  const panel = { title: data.name, unit: data.unit, schedule, costs };
  panel.limits = data.limits;
  panel.note = data.note;
  panel.neutral = neutralFactors(costs);
  if (data.measured) panel.measured = readMeasured(panel, data.measured);
  plan(panel, {});
  return panel;
}

function readMeasured(panel, measured) {
  const { schedule } = panel;
  const decode = (name) => decodeArray(measured[name], Float64Array, `measured.${name}`);
  const [start, end] = [decode("start"), decode("end")];
  const arrived = measured.arrived === null ? null : decode("arrived");
  checkMeasured(schedule, start, end, arrived);
  return { number: measured.number, ...study(panel, panel.costs, { start, end, arrived }) };
}

// Simulate the panel's order with its costs times the factors that are given.
function plan(panel, factors) {
  const given = Object.entries(factors).filter(([, factor]) => factor !== null);
  const all = { ...panel.neutral, ...Object.fromEntries(given) };
  const costs = scaleCosts(panel.costs, all);
  panel.planned = study(panel, costs, simulate(panel.schedule, costs));
  panel.runs = panel.measured ? [panel.planned, panel.measured] : [panel.planned];
}

function study(panel, costs, timeline) {
  const facts = findFacts(panel.schedule, costs, timeline, panel.limits);
  return { timeline, facts, summary: summarize(panel.schedule, timeline, facts) };
}

function runName(panel, run) {
  if (!panel.measured) return panel.title;
  return run === panel.measured ? `${panel.title}, measured` : `${panel.title}, planned`;
}

// How an op ran, as pairs of a label and its text: for the tip, the selection and screen readers.
function describe(panel, run, i) {
  const { schedule, unit } = panel;
  const { facts, timeline } = run;
  const time = (value) => general(value) + (unit ? ` ${unit}` : "");
  const [start, end] = [timeline.start[i] - facts.origin, timeline.end[i] - facts.origin];
  const most = facts.limits?.[schedule.ranks[i]] ?? null;
  const limit = most === null ? "" : ` (limit ${general(most)})`;
  const [before, after] = [facts.memoryBefore[i], facts.memoryAfter[i]].map(general);
  const lines = [
    ["op", `${opName(schedule, i)}, microbatch ${schedule.microbatches[i]}`],
    ["rank", String(schedule.ranks[i])],
    ["time", `${general(start)} to ${time(end)}, takes ${time(end - start)}`],
    ["waited for", waitText(facts, i, time)],
    ["slack", `${time(facts.slack[i])} in the step, ${time(facts.spanSlack[i])} in the span`],
    ["memory", `${before} before, ${after} after${limit}`],
  ];
  const late = time(facts.late[i]);
  if (facts.late[i] > 0) lines.splice(4, 0, ["late", `started ${late} after it could`]);
  if (run !== panel.measured) return lines;
  const lost = time(lossOf(facts, panel.planned.facts, i));
  return [...lines, ["lost", `${lost} against the plan`]];
}

function describeIdle(panel, run, k, rank) {
  const { idle, origin, finish } = run.facts;
  const [start, end] = [idle.start[k] - origin, idle.end[k] - origin];
  const unit = panel.unit ? ` ${panel.unit}` : "";
  return [
    ["idle", causeName(panel.schedule, idle.cause[k])],
    ["rank", String(rank)],
    ["time", `${general(start)} to ${general(end)}${unit}, takes ${general(end - start)}${unit}`],
    ["share", `${percent((end - start) / (finish - origin), 1)} of the makespan`],
  ];
}

function waitText(facts, i, time) {
  const { schedule, turn, needs } = facts;
  const isOnEngine = isCopy(schedule, i);
  if (facts.waitedFor[i] === NOTHING) return "nothing";
  if (facts.waitedFor[i] === ORDER) {
    const early = time(facts.waitForRank[i]);
    const what = isOnEngine ? "it could have begun" : "its input was there";
    return `its turn after ${opName(schedule, turn[i])}, ${what} ${early} before`;
  }
  if (isOnEngine) return `the end of ${opName(schedule, needs[i])}`;
  const idle = `idle ${time(facts.waitForInput[i])}`;
  if (facts.waitedFor[i] === LOAD)
    return `the copy back, ${opName(schedule, schedule.loads[i])}: ${idle}`;
  const need = needs[i];
  const there = Math.min(facts.inputThere[i], facts.timeline.start[i]);
  const travel = there - Math.max(facts.made[i], facts.free[i]);
  const transfer = travel > facts.tiny ? `, transfer ${time(travel)} of it` : "";
  const from = `${opName(schedule, need)} on rank ${schedule.ranks[need]}`;
  return `its input from ${from}: ${idle}${transfer}`;
}
