// How does the page start, and what does it say if it cannot?

function fail(error) {
  const message = element("message");
  message.setAttribute("role", "alert");
  const reason = error?.message ?? String(error);
  const fix = 'Write it again with "zerobubble view".';
  message.textContent = `This page cannot show its data: ${reason}. ${fix}`;
  message.hidden = false;
  element("content").hidden = true;
}

function parseData(text) {
  try {
    return Object(JSON.parse(text));
  } catch {
    throw new Error("they are no JSON");
  }
}

function readData() {
  const holder = element("data");
  if (!holder) throw new Error("the file ends before its data");
  const data = parseData(holder.textContent);
  const problem = `its version is ${data.version}, and this page reads version 1`;
  require(data.version === 1, problem);
  if (!Array.isArray(data.panels) || !data.panels.length) throw new Error("it names no schedule");
  return data;
}

function start() {
  const began = performance.now();
  const viewer = new Viewer(readData());
  addControls(viewer);
  listenToPointer(viewer);
  listenToKeys(viewer);
  const tables = [showSummary, showCritical, showIdle, showLost, showAll];
  const showRuns = () => tables.forEach((show) => show(viewer));
  viewer.onChange(["factors"], showRuns);
  viewer.onChange(["selected", "factors"], () => showSelection(viewer));
  viewer.onChange(["hovered", "window", "factors"], () => showTip(viewer));
  element("all").addEventListener("toggle", () => showAll(viewer));
  addEventListener("hashchange", () => viewer.restore());
  element("message").hidden = true;
  element("content").hidden = false;
  showRuns();
  showSelection(viewer);
  viewer.draw();
  viewer.openedAfter = performance.now() - began;
  return viewer;
}

// For tests and the console: what is shown, and the same model that shows it.
const zerobubble = { readPanel, plan, idleByCause, causeName, wayOfMicrobatch, general, percent };
window.zerobubble = zerobubble;
addEventListener("error", (event) => fail(event.error ?? event.message));
addEventListener("DOMContentLoaded", () => {
  try {
    zerobubble.viewer = start();
  } catch (error) {
    fail(error);
    throw error;
  }
});
