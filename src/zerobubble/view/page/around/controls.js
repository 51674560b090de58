// Which buttons and sliders are there, and what do they do?

const SLIDERS = {
  F: { max: 3, text: "F" },
  B: { max: 3, text: "B" },
  W: { max: 3, text: "W" },
  comm: { max: 3, text: "comm" },
  kept: { max: 1, text: "kept" },
  copy: { max: 3, text: "copy" },
};

const PREFERS_DARK = matchMedia("(prefers-color-scheme: dark)");

function addControls(viewer) {
  for (const name of Object.keys(TOGGLES)) {
    const button = element(`toggle-${name}`);
    const show = () => button.setAttribute("aria-pressed", String(viewer.state[name]));
    button.addEventListener("click", () => viewer.set({ [name]: !viewer.state[name] }));
    viewer.onChange([name], show);
    show();
  }
  const onClick = (id, changes) =>
    element(id).addEventListener("click", () => viewer.set(changes()));
  onClick("theme", () => ({ theme: isDark() ? "light" : "dark" }));
  onClick("fit", () => ({ window: null }));
  onClick("neutral", () => ({ factors: initialState().factors }));
  PREFERS_DARK.addEventListener("change", () => viewer.set({ theme: viewer.state.theme }));
  const hasCopies = viewer.panels.some(({ schedule }) => schedule.hasCopies);
  const shown = FACTORS.filter((name) => name !== "copy" || hasCopies);
  element("sliders").replaceChildren(...shown.map((name) => slider(viewer, name)));
  for (const kind of [O, L, R]) {
    const isThere = viewer.panels.some(({ schedule }) => schedule.kinds.includes(kind));
    element(`legend-${KINDS[kind]}`).hidden = !isThere;
  }
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : PREFERS_DARK.matches;
}

function slider(viewer, name) {
  const { max, text } = SLIDERS[name];
  const hasTransfer = viewer.panels.some((panel) => panel.neutral.comm > 0);
  const unit = name === "comm" && !hasTransfer ? " F" : "";
  const input = make("input", "", { type: "range", min: 0, max, step: 0.05, id: `factor-${name}` });
  const output = make("output", "", { for: `factor-${name}` });
  const show = () => {
    const value = viewer.state.factors[name] ?? viewer.panels[0].neutral[name];
    input.value = value;
    output.textContent = unit ? `${general(value)}${unit}` : `× ${general(value)}`;
  };
  input.addEventListener("input", () => {
    viewer.set({ factors: { ...viewer.state.factors, [name]: Number(input.value) } });
  });
  viewer.onChange(["factors"], show);
  show();
  const label = make("label", text, { for: `factor-${name}` });
  return make("div", "", { class: "slider" }, label, input, output);
}
