// What goes over the wire of each session, for views that follow it: its events, and the numbers of requests,
// which VS Code tells nobody and which a request that is wanted no more is cancelled by.

import * as vscode from "vscode";

export interface Told {
  session: vscode.DebugSession;
  /** An event of the protocol, such as `stopped`; `begun` and `over` stand for the session itself, `stack` for
   * an answer with the innermost frame. */
  event: string;
  body: Body;
}

interface Body {
  threadId?: number;
}

interface Message {
  type: string;
  seq: number;
  request_seq?: number;
  command?: string;
  event?: string;
  arguments?: { startFrame?: number };
  body?: { threadId?: number; stackFrames?: { name: string; line: number }[] };
}

/** ms that views wait for VS Code to have the values that stand in the text: those are shown first. */
const PATIENCE = 150;

const MOVED = new Set(["continued", "terminated", "exited"]);

type Heard = (number: number) => void;

export class Sessions implements vscode.Disposable {
  private readonly told = new vscode.EventEmitter<Told>();
  private readonly expected = new Map<string, Heard[]>();
  private readonly places = new Map<string, string>();
  /** Those that have stopped, and whose place VS Code does not show yet. */
  private readonly unshown = new Map<vscode.DebugSession, { shown: Promise<void>; done(): void }>();
  private readonly listener: vscode.Disposable;
  readonly onTold = this.told.event;

  /** `given` tells when VS Code has the values of the lines in view. */
  constructor(given: vscode.Event<vscode.DebugSession>) {
    this.listener = given((session) => this.unshown.get(session)?.done());
  }

  /** When a view may show what belongs to the stop of a session: VS Code draws in the same thread, and comes first. */
  shown(session: vscode.DebugSession): Promise<void> {
    return this.unshown.get(session)?.shown ?? Promise.resolve();
  }

  private stopped(session: vscode.DebugSession): void {
    let settle = () => {};
    const shown = new Promise<void>((resolve) => (settle = resolve));
    const timer = setTimeout(() => done(), PATIENCE);
    const done = () => {
      clearTimeout(timer);
      if (this.unshown.get(session)?.shown === shown) {
        this.unshown.delete(session);
      }
      settle();
    };
    this.unshown.set(session, { shown, done });
  }

  tracker(session: vscode.DebugSession): vscode.DebugAdapterTracker {
    const tell = (event: string, body: Body = {}) => this.told.fire({ session, event, body });
    /** Requests for the innermost frames. */
    const stacks = new Set<number | undefined>();
    return {
      onWillStartSession: () => tell("begun"),
      onWillStopSession: () => tell("over"),
      onExit: () => tell("over"),
      onWillReceiveMessage: (message: Message) => {
        const heard = this.expected.get(keyOf(session, message.command, message.arguments));
        heard?.shift()?.(message.seq);
        if (message.command === "stackTrace" && !message.arguments?.startFrame) {
          stacks.add(message.seq);
        }
      },
      onDidSendMessage: (message: Message) => {
        if (message.type === "event") {
          if (message.event === "stopped" || MOVED.has(message.event as string)) {
            this.unshown.get(session)?.done();
          }
          if (message.event === "stopped") {
            this.stopped(session);
          }
          tell(message.event as string, message.body);
        } else if (stacks.delete(message.request_seq) && message.body?.stackFrames?.length) {
          const [top] = message.body.stackFrames;
          this.places.set(session.id, `${top?.name}, line ${top?.line}`);
          tell("stack");
        }
      },
    };
  }

  /** Where the program stood when VS Code last asked, as `@main, line 12`. */
  placeOf(session: vscode.DebugSession): string {
    return this.places.get(session.id) ?? "";
  }

  /** Sends a request; `abandon` has the server give it up. */
  ask<Body>(session: vscode.DebugSession, command: string, argument: object): { body: Promise<Body>; abandon(): void } {
    const key = keyOf(session, command, argument);
    const waiting = this.expected.get(key) ?? [];
    this.expected.set(key, waiting);
    let number: number | undefined;
    let abandoned = false;
    // A session that has ended meanwhile refuses it, and has given up all there was.
    const cancel = () => void session.customRequest("cancel", { requestId: number }).then(undefined, () => undefined);
    const heard = (found: number) => {
      number = found;
      if (abandoned) {
        cancel();
      }
    };
    waiting.push(heard);
    const forget = () => {
      const index = waiting.indexOf(heard);
      if (index >= 0) {
        waiting.splice(index, 1);
      }
      if (waiting.length === 0) {
        this.expected.delete(key);
      }
      number = undefined;
    };
    const body = Promise.resolve(session.customRequest(command, argument)).finally(forget);
    return {
      body,
      abandon: () => {
        abandoned = true;
        if (number !== undefined) {
          cancel();
        }
      },
    };
  }

  dispose(): void {
    this.unshown.forEach(({ done }) => done());
    this.listener.dispose();
    this.told.dispose();
  }
}

/** VS Code gives a request no name: it is known again by what it asks. */
function keyOf(session: vscode.DebugSession, command: string | undefined, argument: unknown): string {
  return JSON.stringify([session.id, command, argument]);
}
