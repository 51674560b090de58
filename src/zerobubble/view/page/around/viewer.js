// What happens between the data and the canvas? One object holds the panels, the state, and how
// both become a frame; everything that changes the state goes through it.

class Viewer {
  constructor(data) {
    this.panels = data.panels.map(readPanel);
    this.canvas = element("timeline");
    this.scroller = element("scroller");
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.stats = { frames: 0, ops: 0, columns: 0 };
    this.state = readHash(location.hash, this.panels);
    this.listeners = [];
    this.fontFamily = getComputedStyle(document.body).fontFamily;
    this.applyFactors();
    this.applyTheme();
  }

  // Change some of the state; what depends on it is computed and drawn again.
  set(changes) {
    // An idle interval under the pointer may be another one then, or none.
    if ("factors" in changes) changes = { ...changes, hovered: null };
    Object.assign(this.state, changes);
    if ("factors" in changes) this.applyFactors();
    if ("theme" in changes) this.applyTheme();
    this.invalidate();
    if (Object.keys(changes).some((name) => name !== "hovered")) this.rememberState();
    for (const listen of this.listeners) listen(changes);
  }

  onChange(names, listen) {
    this.listeners.push((changes) => names.some((name) => name in changes) && listen());
  }

  restore() {
    const { hovered: _, ...restored } = readHash(location.hash, this.panels);
    this.set(restored);
  }

  rememberState() {
    clearTimeout(this.remembering);
    this.remembering = setTimeout(() => {
      const hash = writeHash(this.state);
      history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
    }, 150);
  }

  applyFactors() {
    for (const panel of this.panels) plan(panel, this.state.factors);
  }

  applyTheme() {
    if (this.state.theme) document.documentElement.dataset.theme = this.state.theme;
    else delete document.documentElement.dataset.theme;
    this.colors = readColors();
  }

  layout() {
    return layOut(this.panels, this.state, this.scroller.clientWidth);
  }

  invalidate() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  draw() {
    const layout = this.layout();
    element("spacer").style.height = `${layout.height}px`;
    this.scroller.style.height = `${Math.min(layout.height, Math.max(innerHeight * 0.72, 260))}px`;
    const [width, height] = [this.scroller.clientWidth, this.scroller.clientHeight];
    const ratio = devicePixelRatio || 1;
    const size = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== size[0] || this.canvas.height !== size[1]) {
      [this.canvas.width, this.canvas.height] = size;
      Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    }
    const { context, colors, panels, state, stats, fontFamily } = this;
    const scroll = this.scroller.scrollTop;
    drawFrame({ context, colors, panels, state, stats, fontFamily, layout, ratio, scroll, height });
  }

  // The op or idle interval at a point of the window.
  placeAt(clientX, clientY) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [clientX - box.left, clientY - box.top];
    if (y < AXIS) return null;
    return placeAt(this.panels, this.layout(), x, y + this.scroller.scrollTop);
  }

  // The point of the window where that is drawn.
  placeOf(place) {
    const box = this.canvas.getBoundingClientRect();
    const { x, y } = placeOf(this.panels, this.layout(), place);
    return { x: box.left + x, y: box.top + y - this.scroller.scrollTop };
  }

  describe({ panel, run, op, interval, rank }) {
    const shown = [this.panels[panel], this.panels[panel].runs[run]];
    return op === undefined ? describeIdle(...shown, interval, rank) : describe(...shown, op);
  }

  // Show factor times less time, with the time at x staying where it is.
  zoom(factor, x = null) {
    const layout = this.layout();
    const fixed = x === null ? (layout.from + layout.to) / 2 : timeAt(layout, x);
    const length = (layout.to - layout.from) / factor;
    const from = fixed - (fixed - layout.from) / factor;
    if (length < layout.extent * SHORTEST) return;
    this.show(from, from + length);
  }

  pan(time) {
    const { from, to } = this.layout();
    this.show(from + time, to + time);
  }

  // Show a window of time, kept within that of all panels.
  show(from, to) {
    const { extent } = this.layout();
    const length = to - from;
    if (length >= extent) return this.set({ window: null });
    const begin = Math.min(Math.max(from, 0), extent - length);
    return this.set({ window: { from: begin, to: begin + length } });
  }

  // Scroll and pan as little as it takes to see an op.
  reveal(place) {
    const layout = this.layout();
    const { x, row } = placeOf(this.panels, layout, place);
    const [top, height] = [this.scroller.scrollTop, this.scroller.clientHeight];
    if (row.y < top + AXIS) this.scroller.scrollTop = row.y - AXIS - TITLE;
    if (row.y + row.all > top + height) this.scroller.scrollTop = row.y + row.all + 8 - height;
    const time = timeAt(layout, x);
    const half = (layout.to - layout.from) / 2;
    if (time < layout.from || time > layout.to) this.show(time - half, time + half);
  }
}

function element(id) {
  return document.getElementById(id);
}
