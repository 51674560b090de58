// What does the viewer see right now? Kept in the URL's hash, so that a link shows the same.

const FACTORS = ["F", "B", "W", "comm", "kept", "copy"];
const TOGGLES = { critical: false, memory: true, idle: true };

function initialState() {
  const factors = Object.fromEntries(FACTORS.map((name) => [name, null]));
  // window: null for all of the time, else {from, to}; selected: {panel, run, op} by number.
  return { ...TOGGLES, window: null, selected: null, hovered: null, theme: null, factors };
}

function writeHash(state) {
  const words = new URLSearchParams();
  const { window, selected } = state;
  if (window) words.set("t", [window.from, window.to].map(shortNumber).join(","));
  if (selected) words.set("op", [selected.panel, selected.run, selected.op].join(","));
  for (const [name, usual] of Object.entries(TOGGLES))
    if (state[name] !== usual) words.set(name, state[name] ? "1" : "0");
  for (const [name, factor] of Object.entries(state.factors))
    if (factor !== null) words.set(name, factor);
  if (state.theme) words.set("theme", state.theme);
  return words.toString().replaceAll("%2C", ",");
}

function shortNumber(value) {
  return String(Number(value.toPrecision(10)));
}

// So many numbers with commas between them, or none at all.
function readNumbers(text, count) {
  const parts = (text ?? "").split(",");
  const areNumbers = parts.every((part) => /^[+-]?\d+(\.\d*)?(e[+-]?\d+)?$/i.test(part));
  return areNumbers && parts.length === count ? parts.map(Number) : [];
}

// Whatever is wrong in a hash is left out, so that no link breaks the page.
function readHash(hash, panels) {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  const state = initialState();
  const numbers = (name, count) => readNumbers(words.get(name), count);
  const [from, to] = numbers("t", 2);
  if (from < to && Number.isFinite(to - from)) state.window = { from, to };
  const [panel, run, op] = numbers("op", 3);
  if (panels[panel]?.runs[run] && op in panels[panel].schedule.codes)
    state.selected = { panel, run, op };
  for (const name of Object.keys(TOGGLES))
    if (["0", "1"].includes(words.get(name))) state[name] = words.get(name) === "1";
  for (const name of FACTORS) {
    const [factor] = numbers(name, 1);
    if (factor >= 0 && factor <= 100) state.factors[name] = factor;
  }
  if (["light", "dark"].includes(words.get("theme"))) state.theme = words.get("theme");
  return state;
}
