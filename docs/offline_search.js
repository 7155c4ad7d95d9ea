// Browsers start no workers for pages that are opened as files. There, the site's search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const inner = this.frame.contentWindow
      window.addEventListener("message", event => {
        if (event.source !== inner) return
        const copy = new MessageEvent("message", { data: event.data })
        this.dispatchEvent(copy)
        if (this.onmessage) this.onmessage(copy)
      })
      this.ready = new Promise(resolve => {
        inner.addEventListener("load", resolve)
        inner.document.open()
        inner.document.write(`<script>
          window.postMessage = data => parent.postMessage(data, "*")
          window.importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise(done => {
            const script = document.createElement("script")
            script.src = url
            script.onload = done
            document.body.appendChild(script)
          })), Promise.resolve())
        <\/script><body><script src="${url}"><\/script></body>`)
        inner.document.close()
        inner.onload = resolve
      })
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {
      this.frame.remove()
    }
  }
}
