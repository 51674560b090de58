// How are the ops of a rank drawn? Each as a box with its letter, a tick if it takes no time; where
// boxes would be too narrow, each column of pixels shows which shares of its time F, B and W take.

const NARROWEST_BOX = 4;

function drawOps(scene, row, run, track) {
  const { layout, panels } = scene;
  const panel = panels[row.panel];
  const lane = laneOf(row, panel, run, track);
  const ops = visibleOps(panel, run, row.rank, track, layout.from, layout.to);
  if (!ops.length) return;
  const { facts, timeline } = panel.runs[run];
  const left = Math.max(xOf(layout, timeline.start[ops[0]] - facts.origin), LEFT);
  const right = Math.min(xOf(layout, timeline.end[ops.at(-1)] - facts.origin), layout.width - RIGHT);
  const isDense = (right - left) / ops.length < NARROWEST_BOX;
  if (isDense) drawDensity(scene, panel, run, lane, ops);
  else drawBoxes(scene, panel, run, lane, ops);
}

// Those that take no time last, so that the next op does not cover them.
function drawBoxes(scene, panel, run, lane, ops) {
  const { facts, timeline } = panel.runs[run];
  const isTick = (i) => timeline.end[i] - timeline.start[i] <= facts.tiny;
  const ticks = [];
  for (const i of ops) {
    if (isTick(i)) ticks.push(i);
    else drawBox(scene, panel, run, lane, i);
  }
  for (const i of ticks) drawBox(scene, panel, run, lane, i);
}

function boxOf(scene, panel, run, lane, i) {
  const { layout } = scene;
  const { facts, timeline } = panel.runs[run];
  const x = Math.max(xOf(layout, timeline.start[i] - facts.origin), LEFT);
  const right = Math.min(xOf(layout, timeline.end[i] - facts.origin), layout.width - RIGHT);
  return { x, y: lane.y - scene.scroll, width: right < x ? 0 : Math.max(right - x, 1), height: lane.height };
}

function drawBox(scene, panel, run, lane, i) {
  const { context, colors } = scene;
  const { schedule } = panel;
  const { x, y, width, height } = boxOf(scene, panel, run, lane, i);
  if (width <= 0) return;
  const body = width > 5 ? width - 1 : width;
  context.fillStyle = colors[colorName(schedule, i)];
  context.fillRect(x, y, body, height);
  const pattern = colors.hatches[schedule.kinds[i]];
  if (pattern && width > 7) {
    context.fillStyle = pattern;
    context.fillRect(x, y, body, height);
  }
  if (height >= 9 && width >= 9) drawLabel(scene, schedule, i, x, y, body, height);
  scene.stats.ops++;
}

function drawLabel(scene, schedule, i, x, y, width, height) {
  const { context, colors } = scene;
  const isLater = schedule.turnOfStage[schedule.stages[i]] % 2 === 1;
  const kind = isLater ? KINDS[schedule.kinds[i]].toLowerCase() : KINDS[schedule.kinds[i]];
  const size = Math.min(12, height - 2);
  const full = `${kind}${schedule.microbatches[i]}`;
  const text = [full, kind].find((each) => each.length * size * 0.62 + 3 <= width);
  if (!text) return;
  context.font = `${size}px ${scene.fontFamily}`;
  context.fillStyle = colors["on-op"];
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(text, x + width / 2, y + height / 2 + 0.5);
}

// Shares of F, B, W and BW, stacked from the top, and the rest idle, in columns of real pixels.
function drawDensity(scene, panel, run, lane, ops) {
  const { layout, ratio, context, colors } = scene;
  const columns = Math.ceil((layout.width - LEFT - RIGHT) * ratio);
  const height = Math.max(Math.round(lane.height * ratio), 1);
  const shares = sharesOfColumns(scene, panel.schedule, panel.runs[run], ops, columns);
  const image = context.createImageData(columns, height);
  fillColumns(new Uint32Array(image.data.buffer), shares, columns, height, colors.pixels);
  const y = Math.round((lane.y - scene.scroll) * ratio);
  context.putImageData(image, Math.round(LEFT * ratio), y);
  scene.stats.columns += columns;
}

// `colors` has those of F, B, W and BW, then that of idle time.
function fillColumns(pixels, shares, columns, height, colors) {
  const numKinds = KINDS.length;
  pixels.fill(colors[numKinds]);
  for (let column = 0; column < columns; column++) {
    let share = 0;
    let place = column;
    for (let kind = 0; kind < numKinds; kind++) {
      share += shares[column * numKinds + kind];
      const bottom = Math.round(Math.min(share, 1) * height) * columns;
      for (; place < bottom; place += columns) pixels[place] = colors[kind];
    }
  }
}

function sharesOfColumns(scene, schedule, { facts, timeline }, ops, columns) {
  const { layout, ratio } = scene;
  const { kinds } = schedule;
  const { start: starts, end: ends } = timeline;
  const scale = layout.scale * ratio;
  const shift = facts.origin + layout.from;
  const shares = new Float32Array(columns * KINDS.length);
  for (const i of ops) {
    const from = Math.max((starts[i] - shift) * scale, 0);
    const to = Math.min((ends[i] - shift) * scale, columns);
    for (let column = from | 0; column < to; column++) {
      const part = Math.min(to, column + 1) - Math.max(from, column);
      shares[column * KINDS.length + kinds[i]] += part;
    }
  }
  return shares;
}
