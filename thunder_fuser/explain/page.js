"use strict";
{
  const search = document.getElementById("search");
  const found = document.getElementById("found");
  const sections = [...document.querySelectorAll("section[data-noun]")].map((section) => ({
    section,
    noun: section.dataset.noun,
    items: [...section.querySelectorAll(".item")],
  }));
  const texts = new Map(); // item -> its text in lower case, made at the first search
  const unfolded = []; // by the search, until the next one

  // A region is found by its sources and plans too.
  function textOf(item) {
    if (!texts.has(item)) {
      const folded = [...item.querySelectorAll("[data-text]")].map((fold) => textNamed(fold).textContent);
      texts.set(item, [item.textContent, ...folded].join("\n").toLowerCase());
    }
    return texts.get(item);
  }

  function textNamed(fold) {
    return document.querySelector(`#${fold.dataset.text} > pre`);
  }

  // The folds around an element that were closed, from the inside out.
  function unfoldAround(element) {
    const closed = [];
    for (let fold = element?.closest("details"); fold; fold = fold.parentElement.closest("details")) {
      if (!fold.open) closed.push(fold);
      fold.open = true;
    }
    return closed;
  }

  // Shows the items that hold every word of the search; a section without any is hidden.
  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const counts = new Map();
    for (const fold of unfolded.splice(0)) fold.open = false;
    for (const { section, noun, items } of sections) {
      const matching = items.filter((item) => {
        const matches = words.every((word) => textOf(item).includes(word));
        item.hidden = !matches;
        if (matches && words.length) unfolded.push(...unfoldAround(item.parentElement));
        return matches;
      });
      section.hidden = words.length > 0 && matching.length === 0;
      counts.set(noun, (counts.get(noun) ?? 0) + matching.length);
    }
    found.value = words.length ? told(counts) : "";
  }

  function told(counts) {
    const parts = [...counts].filter(([, count]) => count).map(([noun, count]) => `${noun}: ${count}`);
    return parts.length ? parts.join(", ") : "nothing found";
  }

  function clear() {
    search.value = "";
    filter();
  }

  // A text stands in the page once: it is copied to where it is unfolded.
  function copyText(fold) {
    if (!fold?.dataset.text || fold.querySelector("pre")) return;
    fold.lastElementChild.replaceWith(textNamed(fold).cloneNode(true));
  }

  // What a link leads to may be hidden by a search, or folded.
  function reveal() {
    const target = document.getElementById(location.hash.slice(1));
    if (target?.closest("[hidden]")) clear();
    unfoldAround(target);
    target?.scrollIntoView();
  }

  // A click, also by a key, comes before the fold opens; a browser's own search opens it without.
  document.addEventListener("click", (event) => copyText(event.target.closest("summary")?.parentElement));
  document.addEventListener("toggle", (event) => copyText(event.target), true);
  addEventListener("hashchange", reveal);
  search.addEventListener("input", filter);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      clear();
    } else if (event.key === "/" && event.target !== search && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      search.focus();
    }
  });
  filter(); // a browser may bring back what was searched before
}
