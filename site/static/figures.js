// A click on a figure opens its drawing in a dialog: the wheel or + and - zoom, dragging moves, double click or 0 resets.
// Figures whose marks have titles become drawings where they stand as soon as they are pointed at.
// Without this script, or from a folder on disk, a click follows the link to the SVG, which has the titles too.
const served = location.protocol.startsWith("http");

const phone = matchMedia("(max-width: 600px)"); // as in site/hooks.py

async function drawing(link) {
  const answer = await fetch((phone.matches && link.dataset.narrow) || link.href);
  const svg = new DOMParser().parseFromString(await answer.text(), "image/svg+xml").documentElement;
  const host = document.createElement("div");
  const style = document.createElement("style");
  style.textContent = "g:has(> title) * { pointer-events: all }"; // invisible marks too
  host.attachShadow({ mode: "open" }).append(style, svg); // ids of two drawings stay apart
  host.setAttribute("role", "img");
  host.setAttribute("aria-label", link.dataset.label);
  return [host, svg];
}

for (const link of document.querySelectorAll("a.figure")) {
  const picture = link.querySelector("img");
  link.dataset.label = picture.alt;
  if (!served) continue;
  link.addEventListener("click", async (event) => {
    if (event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    show(...(await drawing(link)), link.dataset.label);
  });
  const replace = async () => {
    const [host, svg] = await drawing(link);
    svg.setAttribute("style", "width: 100%; height: auto; background: #fff");
    link.removeAttribute("title"); // the marks have theirs
    (picture.closest("picture") ?? picture).before(host);
    picture.style.display = "none"; // and not removed: a click that began on it would be lost
  };
  if (link.classList.contains("marked")) link.addEventListener("pointerenter", replace, { once: true });
}

function show(host, svg, label) {
  const dialog = document.createElement("dialog");
  dialog.className = "figure";
  dialog.setAttribute("aria-label", label);
  const close = document.createElement("button");
  close.textContent = "Close";
  close.onclick = () => dialog.close();
  const said = document.createElement("output"); // what is pointed at, without a tooltip's delay
  svg.addEventListener("pointermove", (event) => {
    const titled = event.target.closest("g:has(> title)");
    said.textContent = titled?.querySelector("title").textContent ?? "";
  });
  svg.setAttribute("style", "width: 100%; height: 100%; cursor: grab; touch-action: none");
  dialog.append(close, said, host);
  dialog.onclose = () => dialog.remove();
  dialog.onclick = (event) => event.target === dialog && dialog.close();
  document.body.append(dialog);
  zoomable(svg, dialog);
  dialog.showModal();
}

function zoomable(svg, dialog) {
  const whole = svg.getAttribute("viewBox").split(/[ ,]+/).map(Number);
  let view = [...whole];
  const set = (next) => svg.setAttribute("viewBox", (view = next).join(" "));
  const place = (event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  const zoom = (factor, x = view[0] + view[2] / 2, y = view[1] + view[3] / 2) => {
    const width = view[2] * factor;
    if (width > whole[2] * 1.01) return set([...whole]);
    if (width > whole[2] / 60) set([x - (x - view[0]) * factor, y - (y - view[1]) * factor, width, view[3] * factor]);
  };
  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    const { x, y } = place(event);
    zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, x, y);
  });
  svg.addEventListener("dblclick", () => set([...whole]));
  svg.addEventListener("pointerdown", (event) => svg.setPointerCapture(event.pointerId));
  svg.addEventListener("pointermove", (event) => {
    if (!event.buttons) return;
    const scale = svg.getScreenCTM().a;
    set([view[0] - event.movementX / scale, view[1] - event.movementY / scale, view[2], view[3]]);
  });
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "+") zoom(1 / 1.2);
    if (event.key === "-") zoom(1.2);
    if (event.key === "0") set([...whole]);
  });
}
