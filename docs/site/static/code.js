// A file of the repository in colour, and its lines as addresses. The page itself is plain text.
"use strict";
(() => {
  const page = document.querySelector(".src");
  if (!page) return;
  const words = {
    py: "and as assert async await break class continue def del elif else except finally for from global if import in is lambda None nonlocal not or pass raise return True False try while with yield",
    js: "async await break case class const continue default delete else export false finally for function if import in instanceof let new null of return static super switch this throw true try typeof undefined var while yield",
  }[page.dataset.kind];
  const comment = { py: "#.*", js: "\\/\\/.*", toml: "#.*", yml: "#.*", sh: "#.*", txt: "#.*" }[page.dataset.kind];
  const parts = [comment || "(?!)", "[rbf]*(?:\"(?:[^\"\\\\]|\\\\.)*\"|'(?:[^'\\\\]|\\\\.)*')|`[^`]*`", "\\b\\d[\\w.]*\\b",
    words ? `\\b(?:${words.split(" ").join("|")})\\b` : "(?!)", words ? "@[\\w.]+" : "(?!)"];
  const pattern = new RegExp(parts.map((part) => `(${part})`).join("|"), "g");
  const classes = ["c1", "s2", "mi", "k", "nd"]; // as pygments calls them, so that its colours fit
  const coloured = (text) => {
    const made = document.createDocumentFragment();
    let end = 0;
    for (const match of text.matchAll(pattern)) {
      const span = document.createElement("span");
      span.className = classes[match.slice(1).findIndex((part) => part !== undefined)];
      span.textContent = match[0];
      made.append(text.slice(end, match.index), span);
      end = match.index + match[0].length;
    }
    made.append(text.slice(end));
    return made;
  };
  const names = new Map(Array.from((page.dataset.names || "").matchAll(/(\d+) (\S+)/g), ([, line, name]) => [Number(line), name]));
  page.querySelector("pre").replaceChildren(...page.querySelector("pre").textContent.split("\n").map((text, at) => {
    const line = document.createElement("i");
    line.id = `L${at + 1}`;
    if (names.has(at + 1)) line.append(Object.assign(document.createElement("a"), { id: names.get(at + 1) }));
    line.append(text);
    return line;
  }));
  let inside = false; // of a docstring
  for (const line of comment ? page.querySelectorAll("i") : []) {
    const node = line.lastChild;
    if (node?.nodeType !== Node.TEXT_NODE) continue;
    const marks = page.dataset.kind === "py" ? node.data.split('"""').length - 1 : 0;
    if (inside || (marks && /^\s*[rf]?"""/.test(node.data))) {
      const span = document.createElement("span");
      span.className = "sd";
      span.textContent = node.data;
      node.replaceWith(span);
    } else node.replaceWith(coloured(node.data));
    if (marks % 2) inside = !inside;
  }
  if (location.hash) location.replace(location.hash); // the line that was asked for is there only now
  page.addEventListener("click", ({ target, clientX }) => { // a line's number is its address
    const line = target.closest("i");
    if (line && clientX - line.getBoundingClientRect().left < 42) location.hash = line.id;
  });
})();
