// How is memory drawn? As a stepped area under each rank, on the axis of the ops, with the limit
// as a broken line and a mark at the op that raises it to its peak.

function drawMemory(scene, row) {
  const panel = scene.panels[row.panel];
  const run = panel.runs.length - 1;
  const { facts } = panel.runs[run];
  const top = memoryTop(facts);
  if (row.memory < 4 || !(top > 0)) return;
  const ground = row.y + row.all + row.memory - scene.scroll;
  const height = (memory) => Math.max(0, (memory / top) * (row.memory - row.clear - 3));
  drawCurve(scene, panel, run, row, ground, height);
  const limit = facts.limits?.[row.rank];
  if (Number.isFinite(limit)) drawLimit(scene, ground - height(limit), row.memory < 10 ? 0.35 : 1);
  const peak = facts.peaks[row.rank];
  if (peak) drawPeak(scene, facts, peak, ground - height(peak.memory), row);
}

// One scale for all ranks of a panel.
function memoryTop(facts) {
  const limits = (facts.limits ?? []).filter(Number.isFinite);
  return Math.max(...facts.peaks.map((peak) => peak?.memory ?? 0), ...limits);
}

// Several steps within one pixel are drawn as the highest of them.
function drawCurve(scene, panel, run, row, ground, height) {
  const { context, layout, colors } = scene;
  const { facts } = panel.runs[run];
  const [begin, close] = panel.schedule.offsets.slice(row.rank, row.rank + 2);
  if (begin === close) return;
  const timeOf = (i) => facts.memoryTimes[i] - facts.origin;
  const first = search(timeOf, begin, close, layout.from);
  const end = search(timeOf, first, close, layout.to);
  let [x, memory] = [LEFT, first > begin ? facts.memoryAfter[first - 1] : 0];
  let [pixel, highest] = [LEFT, memory];
  context.beginPath();
  context.moveTo(LEFT, ground);
  const step = (to) => {
    context.lineTo(pixel, ground - height(highest));
    context.lineTo(to, ground - height(highest));
    [pixel, highest] = [to, memory];
  };
  for (let i = first; i < end; i++) {
    x = Math.min(Math.max(xOf(layout, timeOf(i)), LEFT), layout.width - RIGHT);
    if (x - pixel >= 1) step(x);
    memory = facts.memoryAfter[i];
    highest = x - pixel < 1 ? Math.max(highest, memory) : memory;
  }
  step(Math.max(x, Math.min(xOf(layout, facts.finish - facts.origin), layout.width - RIGHT)));
  context.lineTo(pixel, ground);
  context.fillStyle = colors.memory;
  context.fill();
}

function drawLimit(scene, y, alpha) {
  const { context, layout, colors } = scene;
  context.strokeStyle = colors.limit;
  context.lineWidth = 1;
  context.globalAlpha = alpha;
  context.setLineDash([4, 3]);
  line(context, LEFT, Math.round(y) + 0.5, layout.width - RIGHT, Math.round(y) + 0.5);
  context.setLineDash([]);
  context.globalAlpha = 1;
}

function drawPeak(scene, facts, peak, y, row) {
  const { context, layout, colors } = scene;
  const x = xOf(layout, peak.start - facts.origin);
  if (x < LEFT || x > layout.width - RIGHT || row.memory < 8) return;
  context.fillStyle = colors.limit;
  context.beginPath();
  context.arc(x, y, 2.5, 0, 2 * Math.PI);
  context.fill();
  if (row.memory < 20) return;
  context.font = `10px ${scene.fontFamily}`;
  context.fillStyle = colors.quiet;
  context.textAlign = "left";
  context.textBaseline = "top";
  context.fillText(`peak ${general(peak.memory)}`, x + 5, y - 1);
}

function line(context, x0, y0, x1, y1) {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}
