// Code beside the paper: a line of the box and its lines of code light up together.
"use strict";
(() => {
  const page = document.querySelector(".beside");
  if (!page) return;
  const [box, file] = [page.querySelector(".bx-box"), page.querySelector(".bx-file")];
  const lines = [...page.querySelectorAll(".bx-line[data-line]")];
  const code = [...page.querySelectorAll(".bx-code[data-lines]")];
  const numbers = (row) => row.dataset.lines.split(" ");
  let held = []; // the line that a tap has chosen; pointing elsewhere is only a look

  const show = (chosen) => {
    for (const line of lines) line.classList.toggle("on", chosen.includes(line.dataset.line));
    for (const row of code) row.classList.toggle("on", numbers(row).some((n) => chosen.includes(n)));
  };
  // What lights up in the other column comes into sight; the page itself stays where it is.
  const bring = (element, column) => {
    const [part, frame] = [element.getBoundingClientRect(), column.getBoundingClientRect()];
    if (part.top < frame.top || part.bottom > frame.bottom) column.scrollTop += part.top - frame.top - frame.height / 3;
  };
  const hold = (number) => {
    held = held.includes(number) ? [] : [number];
    show(held);
  };
  for (const line of lines) {
    const look = () => {
      show([line.dataset.line]);
      bring(document.getElementById(line.dataset.code), file);
    };
    for (const event of ["pointerenter", "focus"]) line.addEventListener(event, look);
    for (const event of ["pointerleave", "blur"]) line.addEventListener(event, () => show(held));
    line.addEventListener("click", (event) => event.target.closest("a") || hold(line.dataset.line));
    line.addEventListener("keydown", (event) => event.key === "Enter" && hold(line.dataset.line));
  }
  for (const row of code) {
    const line = lines.find((one) => one.dataset.line === numbers(row).at(-1));
    row.addEventListener("pointerenter", () => { show(numbers(row)); bring(line, box); });
    row.addEventListener("pointerleave", () => show(held));
    row.addEventListener("click", () => String(getSelection()) || hold(line.dataset.line)); // no copying of code
  }
})();
