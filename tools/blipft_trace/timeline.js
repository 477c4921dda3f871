// The timeline of one step for all ranks: wheel zooms, dragging moves, a double click shows everything again.
(function () {
  const data = JSON.parse(document.getElementById("timeline-data").textContent);
  const canvas = document.getElementById("timeline"), tip = document.getElementById("tip");
  const context = canvas.getContext("2d");
  const left = 130, lane = 18, top_ = 22;
  const colours = ["#3b7dd8", "#d9822b", "#2a9d63", "#c94f6d", "#7b5cc4", "#0f98a8", "#a98d19", "#777f8c", "#9c5b2e",
                   "#b44fb0", "#5a8f3c"];
  const lanes = [];
  for (const rank of data.ranks)
    for (const stream of rank.streams) lanes.push({ rank: rank.rank, ...stream });
  let from = 0, to = data.length;

  function x(time) { return left + (time - from) / (to - from) * (canvas.clientWidth - left - 4); }
  function time(px) { return from + (px - left) / (canvas.clientWidth - left - 4) * (to - from); }
  function label(ns) { return (ns / 1e6).toFixed(to - from < 2e6 ? 4 : 2) + " ms"; }

  function draw() {
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = top_ + lanes.length * lane + 6;
    canvas.style.height = height + "px";
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = "11px sans-serif";
    context.fillStyle = "#fff";
    context.fillRect(0, 0, width, height);
    for (let i = 0; i <= 8; ++i) {
      const at = from + (to - from) * i / 8;
      context.fillStyle = "#ddd";
      context.fillRect(x(at), top_ - 4, 1, height);
      context.fillStyle = "#444";
      context.textAlign = i === 8 ? "right" : "left";
      context.fillText(label(at), x(at) + (i === 8 ? -2 : 2), 12);
    }
    context.textAlign = "left";
    lanes.forEach((row, number) => {
      const y = top_ + number * lane;
      context.save();
      context.beginPath();
      context.rect(left, y, width - left, lane);
      context.clip();
      let reached = -1;   // spans thinner than a pixel are drawn once a pixel
      for (const [begin, end, phase] of row.spans) {
        if (end < from || begin > to) continue;
        const a = x(begin), b = Math.max(x(end), a + 0.7);
        if (b - a < 1 && a < reached) continue;
        reached = a + 0.5;
        context.fillStyle = colours[phase % colours.length];
        context.fillRect(a, y + 2, b - a, lane - 4);
        if (b - a > 60) {
          context.fillStyle = "#fff";
          context.fillText(data.phases[phase] || "", Math.max(a, left) + 3, y + 13, b - Math.max(a, left) - 4);
        }
      }
      context.restore();
      context.fillStyle = "#222";
      context.fillText("rank " + row.rank + " " + row.name, 2, y + 13, left - 6);
    });
  }

  function hit(event) {
    const box = canvas.getBoundingClientRect(), px = event.clientX - box.left;
    const row = lanes[Math.floor((event.clientY - box.top - top_) / lane)];
    if (!row || px < left) return null;
    const slack = (to - from) / canvas.clientWidth, at = time(px);
    let best = null;
    for (const span of row.spans)
      if (span[0] - slack <= at && at <= span[1] + slack && (!best || span[1] - span[0] < best[1] - best[0])) best = span;
    return best && { row, span: best };
  }

  let drag = null;
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    const px = event.clientX - canvas.getBoundingClientRect().left, middle = time(Math.max(px, left));
    const factor = Math.exp(event.deltaY * 0.0015);
    const span = Math.min(Math.max((to - from) * factor, 100), data.length * 1.2);
    const share = (middle - from) / (to - from);
    from = middle - share * span;
    to = from + span;
    draw();
  }, { passive: false });
  canvas.addEventListener("mousedown", event => { drag = { px: event.clientX, from, to }; });
  window.addEventListener("mouseup", () => { drag = null; });
  canvas.addEventListener("dblclick", () => { from = 0; to = data.length; draw(); });
  canvas.addEventListener("mouseleave", () => { tip.style.display = "none"; });
  canvas.addEventListener("mousemove", event => {
    if (drag) {
      const moved = (event.clientX - drag.px) / (canvas.clientWidth - left - 4) * (drag.to - drag.from);
      from = drag.from - moved;
      to = drag.to - moved;
      draw();
    }
    const found = hit(event);
    tip.style.display = found && !drag ? "block" : "none";
    if (!found) return;
    const [begin, end, phase, unit, micro, bytes] = found.span, length = end - begin;
    tip.textContent = (data.phases[phase] || "phase " + phase) + (unit >= 0 ? " " + (data.units[unit] || unit) : "") +
      ", micro-batch " + micro + ": " + (length / 1e3).toFixed(1) + " us at " + (begin / 1e6).toFixed(4) + " ms" +
      (bytes ? ", " + (bytes / 1e6).toFixed(2) + " MB" + (length > 0 ? ", " + (bytes / length).toFixed(1) + " GB/s" : "") : "");
    tip.style.left = Math.min(event.clientX + 12, window.innerWidth - 330) + "px";
    tip.style.top = event.clientY + 14 + "px";
  });
  document.getElementById("legend").innerHTML = "";
  data.phases.forEach((name, phase) => {
    const item = document.createElement("span");
    item.innerHTML = '<i style="background:' + colours[phase % colours.length] + '"></i>';
    item.appendChild(document.createTextNode(name));
    document.getElementById("legend").appendChild(item);
  });
  window.addEventListener("resize", draw);
  draw();
})();
