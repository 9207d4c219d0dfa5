// Take words without meaning out of a search. The theme's search completes each word, so that "a"
// finds every word that begins with a, and "delay a message" finds pages about anything.
(() => {
  const QUERY = 2; // The theme's type of a message to its search worker.
  const EMPTY = new Set(
    "a an and are at be by can do does for from how i if in is it my of on or the this to what when where with".split(" ")
  );
  const meaningful = text => {
    const words = text.split(/\s+/).filter(word => !EMPTY.has(word.toLowerCase()));
    return words.join(" ") || text;
  };
  const post = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message, ...more) {
    const isQuery = message?.type === QUERY && typeof message.data === "string";
    const sent = isQuery ? { ...message, data: meaningful(message.data) } : message;
    return post.call(this, sent, ...more);
  };
})();
