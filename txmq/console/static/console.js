// Replaces what has changed on a page, as the console sends it, and says when the console is away.
"use strict";
(() => {
  const live = document.getElementById("live");
  const page = live && live.dataset.page;
  if (!page) return;
  const SILENCE_MS = 40_000;
  const AWAY_MS = 3_000;
  const AGAIN_MS = 30_000;
  let mark = live.dataset.mark;
  let source = null;
  let again = 0;
  let silence = 0;
  let away = 0;

  const setAway = (isAway) => {
    clearTimeout(away);
    away = 0;
    document.getElementById("offline").hidden = !isAway;
  };

  // Nodes that stay the same keep focus, selection, scroll position, and what was typed or opened.
  const update = (old, fresh) => {
    const isSame = old.nodeName === fresh.nodeName && old.id === fresh.id;
    if (!isSame) {
      old.replaceWith(fresh);
    } else if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
    } else if (!old.isEqualNode(fresh)) {
      updateAttributes(old, fresh);
      updateChildren(old, fresh);
    }
  };
  const updateAttributes = (old, fresh) => {
    const isKept = (name) => name === "open" && old.nodeName === "DETAILS";
    for (const { name, value } of [...fresh.attributes]) {
      if (old.getAttribute(name) !== value && !isKept(name)) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && !isKept(name)) old.removeAttribute(name);
    }
  };
  const updateChildren = (old, fresh) => {
    const wanted = [...fresh.childNodes];
    while (old.childNodes.length > wanted.length) old.lastChild.remove();
    wanted.forEach((child, at) => {
      const known = old.childNodes[at];
      if (known) update(known, child);
      else old.append(child);
    });
  };

  const close = () => {
    clearTimeout(again);
    clearTimeout(silence);
    if (source) source.close();
    source = null;
  };
  const connectLater = (pause) => {
    close();
    again = setTimeout(connect, pause);
  };
  const heard = () => {
    setAway(false);
    clearTimeout(silence);
    silence = setTimeout(() => connectLater(0), SILENCE_MS);
  };
  const connect = () => {
    close();
    if (document.hidden) return;
    const query = new URLSearchParams({ page, shown: mark });
    source = new EventSource(`${live.dataset.from}?${query}`);
    source.onopen = heard;
    source.onerror = () => {
      if (!away) away = setTimeout(() => setAway(true), AWAY_MS);
      if (source && source.readyState === EventSource.CLOSED) connectLater(AGAIN_MS);
    };
    source.addEventListener("alive", heard);
    source.addEventListener("page", (event) => {
      heard();
      mark = event.lastEventId;
      const box = document.createElement("template");
      box.innerHTML = `\n${event.data}\n`;
      const ticked = new Set([...live.querySelectorAll("[name=chosen]:checked")].map((tick) => tick.value));
      updateChildren(live, box.content);
      // A node may now stand for another row: the tick belongs to the row.
      for (const tick of live.querySelectorAll("[name=chosen]")) tick.checked = ticked.has(tick.value);
    });
    source.addEventListener("reload", () => {
      close();
      location.replace(page);
    });
    // Newer windows of this browser use its connections; this one goes on when it is used again.
    source.addEventListener("rest", close);
  };

  document.addEventListener("visibilitychange", connect);
  addEventListener("focus", () => source || connect());
  addEventListener("online", connect);
  addEventListener("offline", () => setAway(true));
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => event.persisted && connect());
  connect();
})();

// What the broker keeps is limited in bytes, and a Chinese character has three.
const checkBytes = (field) => {
  const max = Number(field.dataset.bytesMax);
  if (!max) return;
  const size = new TextEncoder().encode(field.value).length;
  field.setCustomValidity(size > max ? `This has ${size} bytes; shorten it to ${max}.` : "");
};
document.addEventListener("input", (event) => checkBytes(event.target));
// Somebody may have typed before this script came.
document.querySelectorAll("[data-bytes-max]").forEach(checkBytes);

// The key "/" goes to the search, unless somebody types.
document.addEventListener("keydown", (event) => {
  const field = document.getElementById("everywhere");
  const isTyping = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || isTyping || !field) return;
  event.preventDefault();
  field.focus();
  field.select();
});

// The tick in the head of a list ticks all of its rows.
document.addEventListener("change", (event) => {
  if (event.target.id !== "tick-all") return;
  for (const tick of document.querySelectorAll("[name=chosen]")) tick.checked = event.target.checked;
});

// A search that has found nothing goes on by itself, until the visitor stops it.
(() => {
  const PAUSE_MS = 200;
  const further = document.querySelector("#further[data-followed]");
  const stop = document.getElementById("stop");
  if (!further || !stop) return;
  const going = setTimeout(() => location.replace(further.href), PAUSE_MS);
  stop.hidden = false;
  stop.addEventListener("click", () => {
    clearTimeout(going);
    window.stop();
    stop.hidden = true;
    further.focus();
  });
})();
