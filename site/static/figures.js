// A click on a figure opens its drawing in a dialog: the wheel or + and - zoom, dragging moves, double click or 0 resets.
// Without this script, or from a folder on disk, the same click follows the link to the SVG.
document.addEventListener("click", async (event) => {
  const link = event.target.closest("a.figure");
  if (!link || event.ctrlKey || event.metaKey || !location.protocol.startsWith("http")) return;
  event.preventDefault();
  const answer = await fetch(link.href);
  const svg = new DOMParser().parseFromString(await answer.text(), "image/svg+xml").documentElement;
  show(svg, link.querySelector("img").alt);
});

function show(svg, label) {
  const dialog = document.createElement("dialog");
  dialog.className = "figure";
  dialog.setAttribute("aria-label", label);
  const close = document.createElement("button");
  close.textContent = "Close";
  close.onclick = () => dialog.close();
  const frame = document.createElement("div");
  frame.attachShadow({ mode: "open" }).append(svg); // ids of two drawings stay apart
  svg.setAttribute("style", "width: 100%; height: 100%; cursor: grab; touch-action: none");
  dialog.append(close, frame);
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
