// The connection of a page with the extension, and the state that VS Code keeps while the page is hidden.

import type { Handlers, Message } from "../../pages/messages";

interface Editor {
  postMessage(message: Message): void;
  getState(): object | undefined;
  setState(state: object): void;
}

declare function acquireVsCodeApi(): Editor;

export class Host<Received extends Message, Sent extends Message, State extends object = object> {
  private readonly editor = acquireVsCodeApi();
  readonly state: State;

  /** `initial` is the state where VS Code has kept none. */
  constructor(initial: State) {
    this.state = { ...initial, ...(this.editor.getState() as Partial<State> | undefined) };
  }

  send(message: Sent): void {
    this.editor.postMessage(message);
  }

  receive(handlers: Handlers<Received>): void {
    window.addEventListener("message", ({ data }: MessageEvent<Received>) => handlers[data.kind as Received["kind"]](data as never));
  }

  /** Changes the state, and has VS Code keep it. */
  keep(changes: Partial<State>): void {
    this.editor.setState(Object.assign(this.state, changes));
  }
}
