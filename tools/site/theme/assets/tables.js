// Let a keyboard scroll the tables that are wider than the screen.
document$.subscribe(() => {
  requestAnimationFrame(() => {
    for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap")) {
      wrap.tabIndex = 0;
    }
  });
});
