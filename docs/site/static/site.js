// Code beside the paper: a line of the box and its lines of code light up together.
"use strict";
(() => {
  const page = document.querySelector(".beside");
  if (!page) return;
  const lines = [...page.querySelectorAll(".bx-line[data-line]")];
  const code = [...page.querySelectorAll(".bx-code[data-lines]")];
  const numbers = (row) => row.dataset.lines.split(" ");
  let held = null; // the line that a tap has chosen; pointing elsewhere is only a look

  const show = (chosen) => {
    for (const line of lines) line.classList.toggle("on", chosen.includes(line.dataset.line));
    for (const row of code) row.classList.toggle("on", numbers(row).some((n) => chosen.includes(n)));
  };
  const back = () => show(held ? [held] : []);
  // In two columns, bring what lights up in the other one into sight; the page itself stays where it is.
  const bring = (element, column) => {
    const [part, frame] = [element.getBoundingClientRect(), column.getBoundingClientRect()];
    if (innerWidth < 1008 || (part.top >= frame.top && part.bottom <= frame.bottom)) return;
    column.scrollTop += part.top - frame.top - frame.height / 3;
  };
  const gentle = matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth";
  const into = (element, block) => element.scrollIntoView({ behavior: gentle, block, inline: "nearest" });

  const choose = (line) => {
    held = held === line.dataset.line ? null : line.dataset.line;
    back();
    if (held) into(document.getElementById(line.dataset.code), innerWidth < 1008 ? "start" : "center");
  };
  for (const line of lines) {
    const look = () => {
      show([line.dataset.line]);
      bring(document.getElementById(line.dataset.code), page.querySelector(".bx-file"));
    };
    line.addEventListener("pointerenter", look);
    line.addEventListener("pointerleave", back);
    line.addEventListener("focus", look);
    line.addEventListener("click", (event) => { if (!event.target.closest("a")) choose(line); });
    line.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(line); }
    });
  }
  for (const row of code) {
    row.addEventListener("pointerenter", () => {
      show(numbers(row));
      bring(lines.find((one) => one.dataset.line === numbers(row).at(-1)), page.querySelector(".bx-box"));
    });
    row.addEventListener("pointerleave", back);
    row.addEventListener("click", () => {
      if (String(getSelection())) return; // somebody is copying code
      held = numbers(row).at(-1);
      back();
      const line = lines.find((one) => one.dataset.line === held);
      line.parentElement.scrollTo({ top: line.offsetTop - 60, behavior: gentle });
    });
  }
})();

// A picture that the page shows smaller than it is opens by itself at a tap, in its own size.
(() => {
  for (const picture of document.querySelectorAll("article img")) {
    if (picture.closest("a")) continue;
    const mark = () => {
      picture.classList.toggle("strip", picture.naturalWidth > picture.naturalHeight * 2);
      const broad = picture.naturalWidth > 700 && !picture.classList.contains("strip");
      picture.classList.toggle("broad", broad);
      if (picture.matches("p > :is(.strip, .broad):only-child")) picture.parentElement.classList.add("nb-scroll");
      picture.classList.toggle("wide", picture.naturalWidth > picture.clientWidth * 1.2);
    };
    if (picture.complete) mark(); else picture.addEventListener("load", mark);
    picture.addEventListener("click", () => {
      if (picture.classList.contains("wide")) location.href = picture.src;
    });
  }
})();

// A table that is wider than the page scrolls. Then its rows need not be tall: a text gets room for two lines.
(() => {
  for (const table of document.querySelectorAll("article .table-wrapper")) {
    if (table.scrollWidth <= table.clientWidth + 1) continue;
    for (const cell of table.querySelectorAll("td")) {
      cell.style.minWidth = `${Math.min(13, 1 + 0.23 * cell.textContent.length)}rem`;
    }
  }
})();

// The search page without a word to search for says what to do.
(() => {
  const results = document.getElementById("search-results");
  if (!results || new URLSearchParams(location.search).get("q")) return;
  results.innerHTML = `<h1>Search</h1><p class="search-hint">Type a word into the search field of the sidebar
    (on a phone behind the menu button), or begin with <a href="?q=advantage">advantage</a>,
    <a href="?q=entropy">entropy</a> or <a href="?q=grpo_loss">grpo_loss</a>.</p>`;
})();

// The entry of this page is in sight in the sidebar.
(() => {
  const here = document.querySelector(".sidebar-tree .current-page > a");
  const column = document.querySelector(".sidebar-scroll");
  if (!here || !column) return;
  column.style.scrollBehavior = "auto";
  column.scrollTop += here.getBoundingClientRect().top - column.getBoundingClientRect().top - column.clientHeight / 3;
})();

// A button copies a block of code, without prompts or numbers that are only shown.
(() => {
  const copied = async (text) => {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const field = document.createElement("textarea"); // a page that was opened as a file
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  };
  for (const block of document.querySelectorAll("article div.highlight:not(.bx-source)")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await copied(block.querySelector("pre").textContent);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    block.append(button);
  }
})();

// A figure or a table that is wider than the page says so, and a button brings the rest.
addEventListener("load", () => {
  for (const part of document.querySelectorAll("article .nb-scroll, article .table-wrapper, article .nb-output, article .nb-text")) {
    if (part.scrollWidth <= part.clientWidth + 4 || part.querySelector(".explorable")) continue;
    const line = document.createElement("div");
    line.className = "more";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "more to the right \u2192";
    button.addEventListener("click", () => {
      const end = part.scrollLeft + part.clientWidth >= part.scrollWidth - 4;
      part.scrollLeft = end ? 0 : part.scrollLeft + 0.8 * part.clientWidth;
    });
    part.addEventListener("scroll", () => {
      const end = part.scrollLeft + part.clientWidth >= part.scrollWidth - 4;
      button.textContent = end ? "\u2190 back to the left" : "more to the right \u2192";
    });
    line.append(button);
    part.after(line);
  }
});
