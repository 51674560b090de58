// What stands around the picture? The summary, the selected op, idle time, the critical path, what
// lost most, and all ops as a table. All text is set as text, never as markup.

const MOST_OPS_IN_TABLE = 2000;
const MOST_CAUSES = 12;
const MOST_LOST = 10;

function make(tag, text = "", attributes = {}, ...children) {
  const node = document.createElement(tag);
  node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// A name of any length, cut to two lines; pointing at it tells all of it.
function nameOf(tag, text) {
  return make(tag, text, { class: "name", ...(text.length > 60 ? { title: text } : {}) });
}

function makeTable(caption, header, rows) {
  const heads = header.map((text) => make("th", "", { scope: "col" }, nameOf("span", text)));
  const lines = rows.map((cells) => {
    const [name, ...rest] = cells.map(String);
    const datums = rest.map((text) => make("td", text));
    return make("tr", "", {}, make("th", "", { scope: "row" }, nameOf("span", name)), ...datums);
  });
  const head = make("thead", "", {}, make("tr", "", {}, ...heads));
  const title = make("caption", "", {}, nameOf("span", caption));
  return make("table", "", {}, title, head, make("tbody", "", {}, ...lines));
}

function allRuns(viewer) {
  return viewer.panels.flatMap((panel) =>
    panel.runs.map((run) => ({ panel, run, name: runName(panel, run) })),
  );
}

function showSummary(viewer) {
  const rows = allRuns(viewer).map(({ run, name }) => {
    const { span, makespan, bubble, bubble_makespan: other, peak_memory: peak } = run.summary;
    return [name, general(span), percent(bubble), general(makespan), percent(other), general(peak)];
  });
  const header = ["schedule", "span", "bubble", "makespan", "bubble of makespan", "peak memory"];
  const notes = viewer.panels.filter((panel) => panel.measured).map(noteOfMeasured);
  element("summary").replaceChildren(makeTable("Summary", header, rows), ...notes);
}

function noteOfMeasured({ title, measured }) {
  const what = `${title}, measured: of step ${measured.number} alone.`;
  const bubble = "Its bubble is what the busiest rank leaves idle of the longest span";
  const span = "a span is from a rank's first op to its last, without the time between steps";
  return make("p", "", { class: "quiet" }, nameOf("span", what), `${bubble}; ${span}.`);
}

function descriptionList(pairs) {
  return pairs.flatMap(([label, text]) => [make("dt", label), make("dd", text)]);
}

function showSelection(viewer) {
  const { selected } = viewer.state;
  const hint = "Click an op, or press Tab in the picture: its microbatch lights up.";
  const shown = selected
    ? descriptionList(viewer.describe(selected))
    : [make("dd", hint, { class: "quiet" })];
  element("selection").replaceChildren(...shown);
}

function showTip(viewer) {
  const { hovered } = viewer.state;
  const tip = element("tip");
  tip.hidden = !hovered;
  if (!hovered) return;
  tip.replaceChildren(...descriptionList(viewer.describe(hovered)));
  const { x, y } = viewer.placeOf(hovered);
  const [width, height] = [tip.offsetWidth, tip.offsetHeight];
  const left = Math.min(Math.max(x - width / 2, 8), innerWidth - width - 8);
  const below = y + 24 + height < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? y + 24 : y - height - 20}px`;
}

// The critical path of each run: a bar of its parts, and their numbers.
function showCritical(viewer) {
  const parts = allRuns(viewer).flatMap(({ run, name, panel }) => {
    const { split, path } = run.facts;
    const total = Object.values(split).reduce((sum, time) => sum + time, 0) || 1;
    const bar = make("div", "", { class: "bar", "aria-hidden": "true" });
    const known = Object.entries(split).filter(
      ([part]) => part !== "copies" || panel.schedule.hasCopies,
    );
    const texts = known.map(([part, time]) => {
      const piece = make("span", "", { class: part });
      piece.style.width = `${(time / total) * 100}%`;
      bar.append(piece);
      return `${part} ${general(time)} (${percent(time / total, 1)})`;
    });
    const unit = panel.unit ? `, in ${panel.unit}` : "";
    const text = `${path.length} ops${unit}: ${texts.join(", ")}`;
    return [nameOf("h3", name), bar, make("p", text, { class: "split" })];
  });
  element("critical").replaceChildren(...parts);
}

// Idle time of all ranks together by cause, and its share of the time of all ranks: a column for
// each run. The stages waited for are told apart.
function showIdle(viewer) {
  const runs = allRuns(viewer);
  const shares = runs.map(({ panel, run }) => {
    const total = lengthOf(run) * panel.schedule.numRanks || 1;
    const sums = idleOfAllRanks(run.facts);
    return new Map(sums.map(([cause, time]) => [cause, { time, share: time / total }]));
  });
  const largest = (cause) => Math.max(...shares.map((each) => each.get(cause)?.share ?? 0));
  const causes = [...new Set(shares.flatMap((each) => [...each.keys()]))];
  causes.sort((a, b) => largest(b) - largest(a));
  const cell = (found) => (found ? `${general(found.time)} (${percent(found.share, 1)})` : "");
  const rows = causes.map((cause) => [cause, ...shares.map((each) => cell(each.get(cause)))]);
  const more = rows.splice(MOST_CAUSES);
  if (more.length) rows.push([`and ${more.length} more`, ...runs.map(() => "")]);
  const header = ["cause", ...runs.map(({ name }) => name)];
  const caption = "Time, and its share of the time of all ranks";
  const table = makeTable(caption, header, rows);
  element("idle").replaceChildren(rows.length ? table : make("p", "No rank is ever idle."));
}

function idleOfAllRanks(facts) {
  const sums = new Map();
  for (const pairs of idleByCause(facts))
    for (const [cause, time] of pairs) sums.set(cause, (sums.get(cause) ?? 0) + time);
  const named = [...sums].sort((a, b) => b[1] - a[1] || a[0] - b[0]);
  return named.map(([cause, time]) => [causeName(facts.schedule, cause), time]);
}

function showLost(viewer) {
  const measured = viewer.panels.filter((panel) => panel.measured);
  element("lost-card").hidden = !measured.length;
  const tables = measured.map((panel) => {
    const { facts } = panel.measured;
    const rows = mostLost(facts, panel.planned.facts, MOST_LOST).map(({ op, lost }) => {
      const took = ({ timeline }) => general(timeline.end[op] - timeline.start[op]);
      const name = [opName(panel.schedule, op), panel.schedule.ranks[op]];
      const times = [took(panel.planned), took(panel.measured)];
      return [...name, ...times, general(facts.late[op]), general(lost)];
    });
    const name = `${panel.title}${panel.note ? ` (${panel.note})` : ""}`;
    const header = ["op", "rank", "planned", "measured", "late", "lost"];
    if (!rows.length) return make("div", "", {}, nameOf("h3", name), make("p", "No op lost time."));
    return makeTable(name, header, rows);
  });
  element("lost").replaceChildren(...tables);
}

// The text alternative, built when it is opened: every rank's idle time, and every op if few.
function showAll(viewer) {
  const details = element("all");
  if (!details.open) return;
  const header = ["rank", "idle time by cause", "peak memory", "peak op"];
  const parts = allRuns(viewer).flatMap(({ panel, run, name }) => [
    makeTable(`${name}: ranks`, header, rankRows(panel, run)),
    opTable(panel, run, name),
  ]);
  element("all-tables").replaceChildren(...parts);
}

function rankRows(panel, run) {
  const { schedule } = panel;
  return idleByCause(run.facts).map((pairs, rank) => {
    const share = (time) => percent(time / (lengthOf(run) || 1), 1);
    const causes = pairs.map(
      ([cause, time]) => `${causeName(schedule, cause)} ${general(time)} (${share(time)})`,
    );
    const peak = run.facts.peaks[rank];
    const op = peak ? opName(schedule, peak.op) : "";
    const memory = general(run.summary.peak_memory_per_rank[rank]);
    return [`rank ${rank}`, causes.join(", ") || "none", memory, op];
  });
}

function opTable(panel, run, name) {
  const { numOps } = panel.schedule;
  const instead = "too many for a table; Tab goes through them in the picture.";
  if (numOps > MOST_OPS_IN_TABLE) return make("p", `${name} has ${numOps} ops: ${instead}`);
  const found = describe(panel, run, 0).map(([label]) => label);
  const labels = found.filter((label) => label !== "late");
  const rows = Array.from({ length: numOps }, (_, i) => {
    const found = Object.fromEntries(describe(panel, run, i));
    return labels.map((label) => found[label]);
  });
  return makeTable(`${name}: ops`, labels, rows);
}
