// How is idle time drawn? As pale ground behind the ops, with its cause and share where there is
// room, and dotted where it is not mere warm-up or drain.

function drawIdle(scene, row, run) {
  const { context, layout, panels, colors, state } = scene;
  const panel = panels[row.panel];
  const lane = laneOf(row, panel, run);
  const { facts } = panel.runs[run];
  const x = Math.max(xOf(layout, 0), LEFT);
  const right = Math.min(xOf(layout, facts.finish - facts.origin), layout.width - RIGHT);
  if (right <= x) return;
  context.fillStyle = colors.idle;
  context.fillRect(x, lane.y - scene.scroll, right - x, lane.height);
  if (!state.idle || lane.height < 9) return;
  for (const k of visibleIdle(facts, row.rank, layout)) drawInterval(scene, panel, facts, lane, k);
}

function visibleIdle(facts, rank, layout) {
  const { idle } = facts;
  const [first, end] = [idle.offsets[rank], idle.offsets[rank + 1]];
  const low = search((k) => idle.end[k], first, end, facts.origin + layout.from);
  const high = search((k) => idle.start[k], first, end, facts.origin + layout.to);
  return Array.from({ length: Math.max(high - low, 0) }, (_, k) => low + k);
}

function drawInterval(scene, panel, facts, lane, k) {
  const { context, layout, colors } = scene;
  const { idle } = facts;
  const x = Math.max(xOf(layout, idle.start[k] - facts.origin), LEFT);
  const right = Math.min(xOf(layout, idle.end[k] - facts.origin), layout.width - RIGHT);
  const width = right - x;
  if (width < 3) return;
  const y = lane.y - scene.scroll;
  if (idle.cause[k] !== WARM_UP && idle.cause[k] !== DRAIN) {
    context.fillStyle = colors.idleHatch;
    context.fillRect(x, y, width, lane.height);
  }
  if (width < 24) return;
  const size = Math.min(11, lane.height - 2);
  context.font = `${size}px ${scene.fontFamily}`;
  const widthOf = (text) => context.measureText(text).width;
  const text = idleLabels(panel, facts, k).find((each) => widthOf(each) + 6 <= width);
  if (!text) return;
  const textWidth = widthOf(text);
  context.fillStyle = colors.idle;
  context.fillRect(x + (width - textWidth) / 2 - 2, y + 1, textWidth + 4, lane.height - 2);
  context.fillStyle = colors["idle-text"];
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(text, x + width / 2, y + lane.height / 2 + 0.5);
}

// From the longest to the shortest way to say the cause and its share of the makespan.
function idleLabels(panel, facts, k) {
  const { idle } = facts;
  const share = percent((idle.end[k] - idle.start[k]) / (facts.finish - facts.origin), 1);
  const name = causeName(panel.schedule, idle.cause[k]);
  const isWait = idle.cause[k] >= CAUSES.length;
  const wait = name.replace(/waits for |the | of stage | on rank .*/g, "");
  const short = isWait ? wait : name.split(" ")[0];
  return [`${name} ${share}`, `${short} ${share}`, share];
}
