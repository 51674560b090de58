// Which colours does the canvas use? Those of the style sheet, as the theme resolves them.

const COLOR_NAMES = [
  ...KINDS.flatMap((kind) => [kind, `${kind}-later`]),
  "on-op",
  ...["card", "text", "quiet", "line", "idle", "idle-text", "memory", "limit", "accent"],
];

function readColors() {
  const probe = document.createElement("span");
  document.body.append(probe);
  const colors = {};
  for (const name of COLOR_NAMES) {
    probe.style.color = `var(--${name})`;
    colors[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  colors.pixels = Uint32Array.from([...KINDS, "idle"], (name) => pixelOf(colors[name]));
  colors.hatches = KINDS.map((_, kind) => hatch(kind, colors["on-op"]));
  colors.idleHatch = dots(colors["idle-text"]);
  return colors;
}

// A colour as the 32 bits of a pixel in an ImageData.
function pixelOf(color) {
  const [red, green, blue] = color.match(/[\d.]+/g).map(Number);
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

// Readable without colour: F is plain, B leans to the right, W lies flat, BW has both; O stands
// upright, L does and lies flat, R has dots.
function hatch(kind, color) {
  if (kind === F) return null;
  const upright = [[2.5, 0, 2.5, 10], [7.5, 0, 7.5, 10]];
  if (kind === R) return pattern(color, 0.3, [[1, 2.5, 3, 2.5], [6, 7.5, 8, 7.5]]);
  if (kind === O) return pattern(color, 0.22, upright);
  if (kind === L) return pattern(color, 0.22, [...upright, [0, 2.5, 10, 2.5], [0, 7.5, 10, 7.5]]);
  const leaning = kind === W ? [] : [[-2, 8, 8, -2], [3, 13, 13, 3]];
  const flat = kind === B ? [] : [[0, 2.5, 10, 2.5], [0, 7.5, 10, 7.5]];
  return pattern(color, 0.22, [...leaning, ...flat]);
}

function dots(color) {
  return pattern(color, 0.35, [[4, 5, 6, 5]]);
}

// A tile of 10 by 10 pixels with lines, each from a point to another.
function pattern(color, alpha, lines) {
  const tile = Object.assign(document.createElement("canvas"), { width: 10, height: 10 });
  const context = tile.getContext("2d");
  context.strokeStyle = color;
  context.globalAlpha = alpha;
  for (const ends of lines) line(context, ...ends);
  return context.createPattern(tile, "repeat");
}

// A later stage of the same rank has a darker shade, in turns.
function colorName(schedule, i) {
  const isLater = schedule.turnOfStage[schedule.stages[i]] % 2 === 1;
  return KINDS[schedule.kinds[i]] + (isLater ? "-later" : "");
}
