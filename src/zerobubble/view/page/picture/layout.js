// Where does each rank and moment fall? Rows from top to bottom in pixels of the page, time from
// left to right. The canvas is as high as the window allows and shows rows from `scroll` on.

const LEFT = 92;
const RIGHT = 12;
const AXIS = 28;
const TITLE = 34;
// Of all the time, the part that is shown at least.
const SHORTEST = 1e-7;

// Up to so many ranks: the heights of ops, of memory, and of the gap below.
const ROW_HEIGHTS = [
  [8, 30, 24, 10],
  [16, 22, 14, 6],
  [32, 14, 8, 4],
  [Infinity, 10, 5, 2],
];

function rowHeights(numRanks, state) {
  const [, ops, memory, gap] = ROW_HEIGHTS.find(([most]) => numRanks <= most);
  return { ops, memory: state.memory ? memory : 0, gap };
}

function layOut(panels, state, width) {
  const rows = [];
  const titles = [];
  let y = AXIS;
  panels.forEach((panel, number) => {
    titles.push({ panel: number, y });
    y += TITLE;
    const heights = rowHeights(panel.schedule.numRanks * panels.length, state);
    if (panel.measured) heights.ops = Math.round(heights.ops * 1.4);
    for (let rank = 0; rank < panel.schedule.numRanks; rank++) {
      rows.push({ panel: number, rank, y, ops: heights.ops, memory: heights.memory });
      y += heights.ops + heights.memory + heights.gap;
    }
    y += 8;
  });
  const extent = Math.max(...panels.flatMap((panel) => panel.runs.map(lengthOf)), 1e-9);
  const { from, to } = windowWithin(state.window ?? { from: 0, to: extent }, extent);
  const scale = Math.max(width - LEFT - RIGHT, 50) / (to - from);
  return { rows, titles, height: y, width, extent, from, to, scale };
}

// The part of a window that lies within the data, which sliders make shorter, at the same zoom.
function windowWithin({ from, to }, extent) {
  const length = Math.min(Math.max(to - from, extent * SHORTEST), extent);
  const begin = Math.min(Math.max(from, 0), extent - length);
  return { from: begin, to: begin + length };
}

function lengthOf(run) {
  return run.facts.finish - run.facts.origin;
}

function xOf(layout, time) {
  return LEFT + (time - layout.from) * layout.scale;
}

function timeAt(layout, x) {
  return layout.from + (x - LEFT) / layout.scale;
}

// The part of a row that shows a run: all of it, or for a measured panel one half.
function laneOf(row, panel, run) {
  const height = row.ops / panel.runs.length;
  return { y: row.y + run * height, height: panel.runs.length > 1 ? height - 1 : height };
}

// The ops of a rank that run between two times of the row, as a range of indices.
function visibleOps(panel, run, rank, from, to) {
  const { offsets } = panel.schedule;
  const { facts, timeline } = panel.runs[run];
  const [first, end] = [offsets[rank], offsets[rank + 1]];
  let low = search(timeline.end, first, end, facts.origin + from);
  while (low > first && timeline.start[low - 1] >= facts.origin + from) low--;  // takes no time
  return [low, search(timeline.start, first, end, facts.origin + to)];
}

// First index in [low, high) whose value is above the bound; the values rise.
function search(values, low, high, bound) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > bound) high = middle;
    else low = middle + 1;
  }
  return low;
}

// Which op lies at a point of the unscrolled canvas, or else which idle interval?
function placeAt(panels, layout, x, y) {
  const row = layout.rows.find((each) => y >= each.y && y < each.y + each.ops);
  if (!row || x < LEFT || x > layout.width - RIGHT) return null;
  const panel = panels[row.panel];
  const run = Math.floor(((y - row.y) / row.ops) * panel.runs.length);
  const time = timeAt(layout, x);
  const tick = tickAt(panel, run, row.rank, time, 2 / layout.scale);
  if (tick !== null) return { panel: row.panel, run, op: tick };
  const [op] = visibleOps(panel, run, row.rank, time, time);
  const { facts, timeline } = panel.runs[run];
  const hasBegun = timeline.start[op] - facts.origin <= time;
  if (hasBegun && op < panel.schedule.offsets[row.rank + 1]) return { panel: row.panel, run, op };
  const [interval] = visibleIdle(facts, row.rank, { from: time, to: time });
  return interval === undefined ? null : { panel: row.panel, run, interval, rank: row.rank };
}

// The op nearest to a time that takes none itself, and is drawn as a tick.
function tickAt(panel, run, rank, time, reach) {
  const { facts, timeline } = panel.runs[run];
  const [first, end] = visibleOps(panel, run, rank, time - reach, time + reach);
  const distance = (i) => Math.abs(timeline.start[i] - facts.origin - time);
  let nearest = null;
  for (let i = first; i < end; i++) {
    if (timeline.end[i] - timeline.start[i] > facts.tiny) continue;
    if (nearest === null || distance(i) < distance(nearest)) nearest = i;
  }
  return nearest;
}

// The middle of an op or idle interval on the canvas, unscrolled.
function placeOf(panels, layout, { panel, run, op, interval, rank: idleRank }) {
  const rank = idleRank ?? panels[panel].schedule.ranks[op];
  const row = layout.rows.find((each) => each.panel === panel && each.rank === rank);
  const lane = laneOf(row, panels[panel], run);
  const { facts, timeline } = panels[panel].runs[run];
  const [{ start, end }, i] = op === undefined ? [facts.idle, interval] : [timeline, op];
  const middle = (start[i] + end[i]) / 2 - facts.origin;
  return { x: xOf(layout, middle), y: lane.y + lane.height / 2, row };
}
