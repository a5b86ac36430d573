// Keeps a page up to date: asks for it again and takes over what has changed, leaving focus, scroll, what is typed,
// ticked or opened as it is. Works without: then the page is what it was when it was loaded.
(function () {
  "use strict";
  const main = document.getElementById("main");
  const state = document.getElementById("live-state");
  let tag = "";
  let failures = 0;
  let asked = 0;

  // What a person has done to an element is not undone by the server.
  const THEIRS = new Set(["open", "checked", "selected", "title", "data-theme"]);

  function attributes(from, to) {
    for (const { name, value } of [...to.attributes]) {
      if (!THEIRS.has(name) && from.getAttribute(name) !== value) from.setAttribute(name, value);
    }
    for (const { name } of [...from.attributes]) {
      if (!THEIRS.has(name) && !to.hasAttribute(name)) from.removeAttribute(name);
    }
  }

  function key(node) {
    return node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset?.key || "" : "";
  }

  function same(one, other) {
    return one.nodeType === other.nodeType && one.nodeName === other.nodeName && key(one) === key(other);
  }

  function morph(from, to) {
    if (from.nodeType !== Node.ELEMENT_NODE) {
      if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
      return;
    }
    if (from.hasAttribute("data-keep")) return;
    if (from.matches('script[type="application/json"]')) {
      if (from.textContent === to.textContent) return;
      from.textContent = to.textContent;
      const figure = from.closest("figure[data-chart]");
      if (figure && globalThis.UnbrokenCharts) UnbrokenCharts.update(figure, JSON.parse(to.textContent));
      return;
    }
    if (from.isEqualNode(to)) return;
    attributes(from, to);
    if (from.matches("input, textarea")) return;
    let at = from.firstChild;
    for (const wanted of [...to.childNodes]) {
      let found = at;
      while (found && !same(found, wanted)) found = found.nextSibling;
      // A row further down that has a key is taken from there; anything else only if it stands here.
      if (found && (found === at || key(wanted))) {
        if (found !== at) from.insertBefore(found, at);
        else at = at.nextSibling;
        morph(found, wanted);
      } else {
        from.insertBefore(document.importNode(wanted, true), at);
      }
    }
    while (at) {
      const next = at.nextSibling;
      if (!at.contains(document.activeElement) || at.nodeType !== Node.ELEMENT_NODE) at.remove();
      else {
        main.focus({ preventScroll: true }); // what had the focus is gone
        at.remove();
      }
      at = next;
    }
  }

  function ago(seconds) {
    const units = [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]];
    for (const [length, name] of units) {
      const count = Math.floor(seconds / length);
      if (count >= 1) return `${count} ${name}${count === 1 ? "" : "s"} ago`;
    }
    return "now";
  }

  function tellTimes() {
    for (const time of document.querySelectorAll("time[datetime]")) {
      const then = Date.parse(time.dateTime);
      if (Number.isNaN(then)) continue;
      const seconds = (Date.now() - then) / 1000;
      if (seconds >= 0) time.title = `${ago(seconds)}; ${new Date(then).toLocaleString()} here`;
    }
  }

  function tell(words) { const said = words && `· ${words}`; if (state && state.textContent !== said) state.textContent = said; }

  async function look() {
    const mine = ++asked;
    try {
      const headers = tag ? { "If-None-Match": tag } : {};
      const answer = await fetch(location.href, { headers, cache: "no-store", redirect: "manual" });
      const text = answer.status === 304 ? "" : await answer.text();
      if (mine !== asked) return; // something newer was asked for meanwhile
      failures = answer.status < 500 ? 0 : failures + 1;
      tell(answer.ok || answer.status === 304 ? "up to date" : `the server answers ${answer.status}`);
      if (answer.status === 304) return;
      tag = answer.headers.get("ETag") || "";
      const page = new DOMParser().parseFromString(text, "text/html");
      const there = page.getElementById("main");
      if (!there) return;
      const live = main.dataset.live;
      morph(main, there);
      if (!answer.ok && live) main.dataset.live = live; // what cannot be shown now may be shown again
      if (globalThis.UnbrokenCharts) UnbrokenCharts.drawAll(main);
      document.title = page.title;
      tellTimes();
    } catch {
      if (mine !== asked) return;
      failures += 1;
      tell("the server does not answer");
    }
  }

  function again() {
    const seconds = Number(main.dataset.live || 0);
    if (!seconds) { tell(""); return; }
    setTimeout(async () => {
      if (!document.hidden) await look();
      again();
    }, 1000 * Math.min(30, seconds * 2 ** Math.min(failures, 4)));
  }

  // Two are compared, no more: the third to be ticked unticks the first of them.
  const ticked = [];
  document.addEventListener("change", (event) => {
    const box = event.target;
    if (!box.matches?.('form[data-compare] input[name="checkpoint"]')) return;
    const at = ticked.indexOf(box);
    if (at >= 0) ticked.splice(at, 1);
    if (box.checked) ticked.push(box);
    while (ticked.length > 2) ticked.shift().checked = false;
  });

  // A chart comes with one metric. Another is a page of another address: that is asked for, and asked for again from then on.
  document.addEventListener("unbroken:choice", (event) => {
    const there = new URL(location.href);
    const name = event.target.dataset.chart;
    if (there.searchParams.get(name) === event.detail.metric) return; // on its way, or not there any more
    there.searchParams.set(name, event.detail.metric);
    history.replaceState(null, "", there);
    look();
  });

  tellTimes();
  again();
})();
