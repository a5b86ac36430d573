// A table that is wider than its place scrolls: with the keyboard, too. The theme makes the box that does; only one that
// has something to scroll is a stop of the Tab key.
(function () {
  "use strict";
  const measured = new ResizeObserver((boxes) => {
    for (const { target } of boxes) {
      if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  });
  function found() {
    for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) measured.observe(box);
  }
  new MutationObserver(found).observe(document.body, { childList: true, subtree: true });
  found();
})();
