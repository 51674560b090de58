// How do pointer and keyboard move the picture? Wheel zooms, dragging pans, a click selects; all of
// it can be done with keys as well.

function listenToPointer(viewer) {
  const { canvas, scroller } = viewer;
  let grip = null;
  canvas.addEventListener("wheel", (event) => turnWheel(viewer, event), { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const { from } = viewer.layout();
    grip = { x: event.clientX, y: event.clientY, from, top: scroller.scrollTop, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (grip) drag(viewer, grip, event);
    else hover(viewer, viewer.placeAt(event.clientX, event.clientY));
  });
  canvas.addEventListener("pointerup", (event) => {
    const place = viewer.placeAt(event.clientX, event.clientY);
    const selected = place?.op === undefined ? null : place;
    if (grip && !grip.moved) viewer.set({ selected, critical: false });
    grip = null;
  });
  canvas.addEventListener("pointercancel", () => (grip = null));
  canvas.addEventListener("pointerleave", () => hover(viewer, null));
  scroller.addEventListener("scroll", () => viewer.invalidate());
  new ResizeObserver(() => viewer.invalidate()).observe(scroller);
}

// Most moves of the pointer stay within an op, and nothing need be drawn.
function hover(viewer, hovered) {
  if (JSON.stringify(hovered) !== JSON.stringify(viewer.state.hovered)) viewer.set({ hovered });
}

function drag(viewer, grip, event) {
  const [dx, dy] = [event.clientX - grip.x, event.clientY - grip.y];
  grip.moved ||= Math.hypot(dx, dy) > 4;
  if (!grip.moved) return;
  const layout = viewer.layout();
  const from = grip.from - dx / layout.scale;
  viewer.scroller.scrollTop = grip.top - dy;
  viewer.show(from, from + layout.to - layout.from);
}

function turnWheel(viewer, event) {
  if (event.shiftKey && event.deltaX === 0) {
    viewer.scroller.scrollTop += event.deltaY;
  } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    viewer.pan(event.deltaX / viewer.layout().scale);
  } else {
    const x = event.clientX - viewer.canvas.getBoundingClientRect().left;
    viewer.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0018)), x);
  }
  event.preventDefault();
}

function listenToKeys(viewer) {
  viewer.canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (pressKey(viewer, event)) event.preventDefault();
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input")) return;
    if (event.key === "c") viewer.set({ critical: !viewer.state.critical });
    if (event.key === "m") viewer.set({ memory: !viewer.state.memory });
    if (event.key === "i") viewer.set({ idle: !viewer.state.idle });
    if (event.key === "Escape") viewer.set({ selected: null, critical: false });
  });
}

// Says whether the key meant something here, so that the browser does not act on it too.
function pressKey(viewer, { key, shiftKey }) {
  const { from, to } = viewer.layout();
  const { selected } = viewer.state;
  const goDown = (step) =>
    selected ? choose(viewer, onOtherRank(viewer, selected, step)) : scrollRows(viewer, 60 * step);
  const actions = {
    "+": () => viewer.zoom(1.5),
    "=": () => viewer.zoom(1.5),
    "-": () => viewer.zoom(1 / 1.5),
    Home: () => viewer.set({ window: null }),
    ArrowLeft: () => viewer.pan((from - to) / 10),
    ArrowRight: () => viewer.pan((to - from) / 10),
    ArrowUp: () => goDown(-1),
    ArrowDown: () => goDown(1),
    p: () => selected && choose(viewer, onOtherRun(viewer, selected)),
  };
  if (key === "Tab") return tab(viewer, shiftKey ? -1 : 1);
  if (key === "Escape") viewer.hasLeft = true;
  actions[key]?.();
  return key in actions;
}

// Go to the next op in the order of its rank, after the last one to the next schedule. The browser
// takes Tab after all of them, and after Escape, so that nobody is caught in the picture.
function tab(viewer, step) {
  const { selected } = viewer.state;
  const isLeaving = viewer.hasLeft;
  viewer.hasLeft = false;
  if (isLeaving || (!selected && step < 0)) return false;
  if (!selected) return choose(viewer, { panel: 0, run: viewer.panels[0].runs.length - 1, op: 0 });
  const op = selected.op + step;
  if (op in viewer.panels[selected.panel].schedule.codes)
    return choose(viewer, { ...selected, op });
  const panel = selected.panel + step;
  if (!viewer.panels[panel]) return false;
  const { runs, schedule } = viewer.panels[panel];
  return choose(viewer, { panel, run: runs.length - 1, op: step > 0 ? 0 : schedule.numOps - 1 });
}

function choose(viewer, place) {
  viewer.set({ selected: place, critical: false });
  viewer.reveal(place);
  return true;
}

function scrollRows(viewer, pixels) {
  viewer.scroller.scrollTop += pixels;
}

// The same op in the plan and in what was measured.
function onOtherRun(viewer, place) {
  return { ...place, run: (place.run + 1) % viewer.panels[place.panel].runs.length };
}

// The op that runs in a neighbouring row when the selected one starts, or the next one there. The
// rows of all schedules follow each other, those of copies too; those without ops are left out.
function onOtherRank(viewer, place, step) {
  const { panels } = viewer;
  const { schedule, runs } = panels[place.panel];
  const lanes = panels.flatMap((panel, number) =>
    panel.schedule.tracks.flatMap((tracks, rank) =>
      tracks.map((ops, track) => ({ panel: number, rank, track, ops })),
    ),
  );
  const time = runs[place.run].timeline.start[place.op] - runs[place.run].facts.origin;
  const here = { rank: schedule.ranks[place.op], track: trackOf(schedule, place.op) };
  let number = lanes.findIndex(
    ({ panel, rank, track }) =>
      panel === place.panel && rank === here.rank && track === here.track,
  );
  for (number += step; lanes[number]; number += step) {
    const { panel, ops } = lanes[number];
    const run = panel === place.panel ? place.run : panels[panel].runs.length - 1;
    const { timeline, facts } = panels[panel].runs[run];
    const next = search((k) => timeline.end[ops[k]], 0, ops.length, time + facts.origin);
    if (ops.length) return { panel, run, op: ops[Math.min(next, ops.length - 1)] };
  }
  return place;
}
