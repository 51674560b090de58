// How is one frame drawn? Only the rows and ops that can be seen.

function drawFrame(scene) {
  const { context, layout, ratio, colors, state } = scene;
  scene.stats.ops = scene.stats.columns = 0;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = colors.card;
  context.fillRect(0, 0, layout.width, scene.height);
  for (const row of visibleRows(scene)) {
    const { runs, schedule } = scene.panels[row.panel];
    for (let run = 0; run < runs.length; run++) {
      drawIdle(scene, row, run);
      schedule.tracks[row.rank].forEach((_, track) => drawOps(scene, row, run, track));
    }
    if (state.memory) drawMemory(scene, row);
  }
  drawHighlights(scene);
  drawNames(scene);
  drawTitles(scene);
  drawAxis(scene);
  scene.stats.frames++;
}

function visibleRows(scene) {
  const [top, bottom] = [scene.scroll + AXIS, scene.scroll + scene.height];
  return scene.layout.rows.filter((row) => row.y + row.all + row.memory > top && row.y < bottom);
}

function drawNames(scene) {
  const { context, colors, panels } = scene;
  context.fillStyle = colors.card;
  context.fillRect(0, 0, LEFT, scene.height);
  context.fillStyle = colors.text;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const row of visibleRows(scene)) {
    const y = row.y - scene.scroll;
    const size = Math.max(Math.min(12, row.ops + 1), 8);
    context.font = `${size}px ${scene.fontFamily}`;
    context.fillStyle = colors.text;
    const hasRuns = panels[row.panel].measured && row.ops >= 24;
    const name = `rank ${row.rank}`;
    context.fillText(name, hasRuns ? LEFT - 40 : LEFT - 8, y + row.ops / 2 + 0.5);
    if (hasRuns) drawRunNames(scene, row, y);
    if (row.copies >= 10) drawCopyNames(scene, row, y);
    if (row.memory >= 20) drawMemoryName(scene, row, y);
  }
}

function drawRunNames(scene, row, y) {
  const { context, colors } = scene;
  context.font = `9.5px ${scene.fontFamily}`;
  context.fillStyle = colors.quiet;
  context.fillText("plan", LEFT - 6, y + row.ops / 4);
  context.fillText("run", LEFT - 6, y + (3 * row.ops) / 4);
}

function drawCopyNames(scene, row, y) {
  const { context, colors } = scene;
  context.font = `10px ${scene.fontFamily}`;
  context.fillStyle = colors.quiet;
  context.fillText("out", LEFT - 8, y + row.ops + row.copies / 2 + 1);
  context.fillText("in", LEFT - 8, y + row.ops + row.copies * 1.5 + 1);
}

function drawMemoryName(scene, row, y) {
  const { context, colors } = scene;
  context.font = `10px ${scene.fontFamily}`;
  context.fillStyle = colors.quiet;
  context.fillText("memory", LEFT - 8, y + row.all + row.memory / 2 + 2);
}

function drawTitles(scene) {
  const { context, layout, colors, panels, scroll } = scene;
  for (const { panel, y } of layout.titles) {
    if (y - scroll < 0 || y - scroll > scene.height) continue;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillStyle = colors.text;
    context.font = `600 13px ${scene.fontFamily}`;
    const title = shorten(context, panels[panel].title, (layout.width - 2 * LEFT) / 2);
    context.fillText(title, 12, y - scroll + 17);
    const after = 12 + context.measureText(title).width + 12;
    context.fillStyle = colors.quiet;
    context.font = `12px ${scene.fontFamily}`;
    context.fillText(subtitle(panels[panel]), after, y - scroll + 17.5);
  }
}

function shorten(context, text, width) {
  const fits = (part) => context.measureText(part).width <= width;
  if (fits(text)) return text;
  const kept = Array.from(text).slice(0, 200);
  while (kept.length > 1 && !fits(`${kept.join("")}…`)) kept.pop();
  return `${kept.join("")}…`;
}

function subtitle(panel) {
  const { summary } = panel.runs.at(-1);
  const unit = panel.unit ? ` ${panel.unit}` : "";
  const what = panel.measured ? `step ${panel.measured.number}, measured ` : "";
  const time = `${what}span ${general(summary.span)}${unit}, bubble ${percent(summary.bubble)}`;
  return `${time}, peak memory ${general(summary.peak_memory)}`;
}

function drawAxis(scene) {
  const { context, layout, colors } = scene;
  context.fillStyle = colors.card;
  context.fillRect(0, 0, layout.width, AXIS);
  context.font = `11px ${scene.fontFamily}`;
  context.textBaseline = "middle";
  context.fillStyle = colors.quiet;
  context.strokeStyle = colors.line;
  context.lineWidth = 1;
  const unit = scene.panels[0].unit;
  context.textAlign = "left";
  context.fillText(unit ? `time (${unit})` : "time", 12, AXIS / 2);
  context.textAlign = "center";
  for (const time of ticks(layout)) {
    const x = Math.round(xOf(layout, time)) + 0.5;
    context.fillText(general(time), x, AXIS / 2 - 1);
    line(context, x, AXIS - 6, x, AXIS);
  }
  line(context, LEFT, AXIS - 0.5, layout.width - RIGHT, AXIS - 0.5);
}

// Round times about 90 pixels apart.
function ticks(layout) {
  const rough = 90 / layout.scale;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const first = Math.ceil(layout.from / step - 1e-9);
  const last = Math.floor(layout.to / step + 1e-9);
  const length = Math.max(last - first + 1, 0);
  return Array.from({ length }, (_, k) => Number(((first + k) * step).toPrecision(12)));
}
