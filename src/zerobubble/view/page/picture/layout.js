// Where does each rank and moment fall? Rows from top to bottom in pixels of the page, time from
// left to right. The canvas is as high as the window allows and shows rows from `scroll` on.

const LEFT = 92;
const RIGHT = 12;
const AXIS = 28;
const TITLE = 34;
// Of all the time, the part that is shown at least.
const SHORTEST = 1e-7;

// Height of a row of copies; that of a row of ops is 1.
const OF_COPIES = 0.6;
// Between a row of copies and the mark of a peak.
const UNDER_COPIES = 6;

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
      const row = rowOf(panel, rank, heights);
      rows.push({ panel: number, rank, y, ...row });
      y += row.all + row.memory + heights.gap;
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

// A row of a rank: its ops, beneath them its copies out and in if there are any, its memory.
function rowOf(panel, rank, { ops, memory }) {
  const shown = panel.schedule.tracks[rank].map((track) => track.length > 0);
  const copies = shown[OUT] || shown[IN] ? Math.max(Math.round(ops * OF_COPIES), 3) : 0;
  const clear = copies && memory >= 20 ? UNDER_COPIES : 0;
  return { ops, copies, all: ops + 2 * copies, clear, memory: memory && memory + clear };
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

// The part of a row that shows a track of a run: all of it, or for a measured panel one half.
function laneOf(row, panel, run, track = COMPUTED) {
  const whole = track === COMPUTED ? row.ops : row.copies - 1;
  const top = row.y + (track === COMPUTED ? 0 : row.ops + 1 + (track - 1) * row.copies);
  const height = whole / panel.runs.length;
  return { y: top + run * height, height: panel.runs.length > 1 ? height - 1 : height };
}

function laneOfOp(row, panel, run, i) {
  return laneOf(row, panel, run, trackOf(panel.schedule, i));
}

// The ops of a track of a rank that run between two times of the row.
function visibleOps(panel, run, rank, track, from, to) {
  const ops = panel.schedule.tracks[rank][track];
  const { facts, timeline } = panel.runs[run];
  let low = search((k) => timeline.end[ops[k]], 0, ops.length, facts.origin + from);
  while (low > 0 && timeline.start[ops[low - 1]] >= facts.origin + from) low--;  // takes no time
  return ops.subarray(low, search((k) => timeline.start[ops[k]], 0, ops.length, facts.origin + to));
}

// First index in [low, high) whose value is above the bound; the values rise.
function search(valueAt, low, high, bound) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (valueAt(middle) > bound) high = middle;
    else low = middle + 1;
  }
  return low;
}

// Which track of a row is at a height of the unscrolled canvas?
function trackAt(row, y) {
  if (y < row.y + row.ops) return COMPUTED;
  return y < row.y + row.ops + row.copies ? OUT : IN;
}

// Which op lies at a point of the unscrolled canvas, or else which idle interval?
function placeAt(panels, layout, x, y) {
  const row = layout.rows.find((each) => y >= each.y && y < each.y + each.all);
  if (!row || x < LEFT || x > layout.width - RIGHT) return null;
  const [panel, track, time] = [panels[row.panel], trackAt(row, y), timeAt(layout, x)];
  const lane = laneOf(row, panel, 0, track);
  const share = panel.runs.length > 1 ? lane.height + 1 : lane.height;
  const run = Math.min(Math.max(Math.floor((y - lane.y) / share), 0), panel.runs.length - 1);
  const op = opAt(panel, run, row.rank, track, time, 2 / layout.scale);
  if (op !== null) return { panel: row.panel, run, op };
  if (track !== COMPUTED) return null;
  const [interval] = visibleIdle(panel.runs[run].facts, row.rank, { from: time, to: time });
  return interval === undefined ? null : { panel: row.panel, run, interval, rank: row.rank };
}

function opAt(panel, run, rank, track, time, reach) {
  const tick = tickAt(panel, run, rank, track, time, reach);
  if (tick !== null) return tick;
  const { facts, timeline } = panel.runs[run];
  const ops = panel.schedule.tracks[rank][track];
  const op = ops[search((k) => timeline.end[ops[k]], 0, ops.length, facts.origin + time)];
  return op !== undefined && timeline.start[op] - facts.origin <= time ? op : null;
}

// The op nearest to a time that takes none itself, and is drawn as a tick.
function tickAt(panel, run, rank, track, time, reach) {
  const { facts, timeline } = panel.runs[run];
  const distance = (i) => Math.abs(timeline.start[i] - facts.origin - time);
  let nearest = null;
  for (const i of visibleOps(panel, run, rank, track, time - reach, time + reach)) {
    if (timeline.end[i] - timeline.start[i] > facts.tiny) continue;
    if (nearest === null || distance(i) < distance(nearest)) nearest = i;
  }
  return nearest;
}

// The middle of an op or idle interval on the canvas, unscrolled.
function placeOf(panels, layout, { panel, run, op, interval, rank: idleRank }) {
  const rank = idleRank ?? panels[panel].schedule.ranks[op];
  const row = layout.rows.find((each) => each.panel === panel && each.rank === rank);
  const isIdle = op === undefined;
  const lane = isIdle ? laneOf(row, panels[panel], run) : laneOfOp(row, panels[panel], run, op);
  const { facts, timeline } = panels[panel].runs[run];
  const [{ start, end }, i] = isIdle ? [facts.idle, interval] : [timeline, op];
  const middle = (start[i] + end[i]) / 2 - facts.origin;
  return { x: xOf(layout, middle), y: lane.y + lane.height / 2, row };
}
