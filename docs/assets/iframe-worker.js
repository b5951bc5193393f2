// Browsers start no worker for a page that was opened from a folder. There, a hidden frame runs the search.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = this.onerror = null;
      const home = new URL(url, location.href);
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.ready = new Promise((done) => {
        const start = () => {
          document.body.append(frame);
          const inside = frame.contentWindow;
          inside.postMessage = (data) => {
            const event = new MessageEvent("message", { data });
            this.dispatchEvent(event);
            if (this.onmessage) this.onmessage(event);
          };
          const load = (from) => new Promise((loaded, failed) => {
            const script = inside.document.createElement("script");
            Object.assign(script, { src: new URL(from, home).href, onload: loaded, onerror: failed });
            inside.document.body.append(script);
          });
          inside.importScripts = (...all) => all.reduce((before, next) => before.then(() => load(next)), Promise.resolve());
          load(home).then(() => done(inside));
        };
        document.body ? start() : addEventListener("DOMContentLoaded", start);
      });
      this.frame = frame;
    }
    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }
    terminate() { this.frame.remove(); }
  };
}
