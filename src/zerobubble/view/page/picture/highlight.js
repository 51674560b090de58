// What stands out? The critical path, the way of the selected microbatch through all stages, and
// the op under the pointer. Everything else is veiled.

function highlightedOps(scene, number) {
  const { panels, state } = scene;
  const panel = panels[number];
  if (state.critical) return panel.runs.map((run) => Array.from(run.facts.path));
  if (!state.selected || state.selected.panel !== number) return null;
  const ops = wayOfMicrobatch(panel.schedule, state.selected.op);
  return panel.runs.map((_, run) => (run === state.selected.run ? ops : []));
}

// All ops of the microbatch of an op: forwards, then gradients back, then weight gradients; copies
// and repeated forwards last.
function wayOfMicrobatch(schedule, op) {
  const microbatch = schedule.microbatches[op];
  const stages = Array.from({ length: schedule.numStages }, (_, stage) => stage);
  const all = (kinds, order) =>
    order.flatMap((stage) => kinds.map((kind) => schedule.place(kind, stage, microbatch)));
  const found = [...all([F], stages), ...all([B, BW], stages.toReversed()), ...all([W], stages)];
  found.push(...all([O, L, R], stages));
  return found.filter((i) => i >= 0);
}

function drawHighlights(scene) {
  scene.panels.forEach((panel, number) => {
    const opsOfRuns = highlightedOps(scene, number);
    const rows = scene.layout.rows.filter((row) => row.panel === number);
    if (!opsOfRuns) return;
    veil(scene, rows);
    opsOfRuns.forEach((ops, run) => {
      drawConnections(scene, panel, run, rows, ops);
      for (const i of ops) drawHighlighted(scene, panel, run, rows, i);
    });
  });
  const { selected, hovered } = scene.state;
  if (hovered?.op !== undefined) outline(scene, hovered, scene.colors.text, 1.5);
  if (selected) outline(scene, selected, scene.colors.accent, 2.5);
}

function veil(scene, rows) {
  const { context, layout, colors, scroll } = scene;
  context.globalAlpha = 0.72;
  context.fillStyle = colors.card;
  const width = layout.width - LEFT - RIGHT;
  for (const row of rows) context.fillRect(LEFT, row.y - scroll, width, row.all);
  context.globalAlpha = 1;
}

function drawHighlighted(scene, panel, run, rows, i) {
  const { context, colors } = scene;
  const lane = laneOfOp(rows[panel.schedule.ranks[i]], panel, run, i);
  const box = boxOf(scene, panel, run, lane, i);
  if (box.width <= 0) return;
  drawBox(scene, panel, run, lane, i);
  if (box.width < 3) {
    context.fillStyle = colors[colorName(panel.schedule, i)];
    context.fillRect(box.x, box.y, 2, box.height);
  } else {
    context.strokeStyle = colors.text;
    context.lineWidth = 1;
    context.strokeRect(box.x + 0.5, box.y + 0.5, Math.max(box.width - 2, 1), box.height - 1);
  }
}

// A thin line from the end of each op to the start of the next one that needs or follows it.
function drawConnections(scene, panel, run, rows, ops) {
  const { context, layout, colors, scroll } = scene;
  const { needs, ranks } = panel.schedule;
  const isOneRow = (i, need) => ranks[need] === ranks[i] && !isCopy(panel.schedule, i);
  const { facts, timeline } = panel.runs[run];
  context.strokeStyle = colors.accent;
  context.lineWidth = 1.25;
  context.save();
  context.beginPath();
  context.rect(LEFT, AXIS, layout.width - LEFT - RIGHT, scene.height);
  context.clip();
  const middle = (i) => {
    const lane = laneOfOp(rows[ranks[i]], panel, run, i);
    return lane.y + lane.height / 2 - scroll;
  };
  const shown = new Set(ops);
  for (const i of ops) {
    const need = needs[i];
    if (need < 0 || isOneRow(i, need) || !shown.has(need)) continue;
    const x0 = xOf(layout, timeline.end[need] - facts.origin);
    const x1 = xOf(layout, timeline.start[i] - facts.origin);
    if (Math.max(x0, x1) < LEFT || Math.min(x0, x1) > layout.width) continue;
    line(context, x0, middle(need), x1, middle(i));
  }
  context.restore();
}

function outline(scene, place, color, width) {
  const { context, layout, panels } = scene;
  const panel = panels[place.panel];
  const rows = layout.rows.filter((row) => row.panel === place.panel);
  const lane = laneOfOp(rows[panel.schedule.ranks[place.op]], panel, place.run, place.op);
  const box = boxOf(scene, panel, place.run, lane, place.op);
  if (box.width <= 0) return;
  context.strokeStyle = color;
  context.lineWidth = width;
  context.strokeRect(box.x, box.y, Math.max(box.width - 1, 2), box.height);
}
