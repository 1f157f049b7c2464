// Events of debug sessions for the views that follow them, and the requests of these views.

import * as vscode from "vscode";
import type { Connections, PendingRequest } from "../session/connections";

export interface SessionEvent {
  session: vscode.DebugSession;
  /** An event of the protocol, such as `stopped`; `ended`, at the end of the session; or `stackTrace`, when VS Code has
   * received the innermost frame. */
  event: string;
}

interface ProtocolMessage {
  type: string;
  seq: number;
  request_seq?: number;
  command?: string;
  event?: string;
  arguments?: { startFrame?: number };
  body?: { stackFrames?: { name: string; line: number }[] };
}

/** ms that views wait for the values in the text, which VS Code shows first. */
const VALUES_TIMEOUT = 150;

const MOVED = new Set(["continued", "terminated", "exited"]);

export class SessionEvents implements vscode.Disposable {
  private readonly events = new vscode.EventEmitter<SessionEvent>();
  readonly onEvent = this.events.event;
  private readonly places = new Map<string, string>();
  /** Stopped sessions whose values VS Code does not show yet. */
  private readonly waiting = new Map<vscode.DebugSession, { shown: Promise<void>; done: () => void }>();
  private readonly listener: vscode.Disposable;

  /** `onValues` fires when VS Code has received the values of the visible lines. */
  constructor(
    private readonly connections: Connections,
    onValues: vscode.Event<vscode.DebugSession>,
  ) {
    this.listener = onValues((session) => this.waiting.get(session)?.done());
  }

  /** Resolves when views may show a stop: VS Code draws the values in the text first, in the same thread. */
  valuesShown(session: vscode.DebugSession): Promise<void> {
    return this.waiting.get(session)?.shown ?? Promise.resolve();
  }

  private stopped(session: vscode.DebugSession): void {
    this.waiting.get(session)?.done();
    let settle = () => {};
    const shown = new Promise<void>((resolve) => (settle = resolve));
    const timer = setTimeout(() => done(), VALUES_TIMEOUT);
    const done = () => {
      clearTimeout(timer);
      if (this.waiting.get(session)?.shown === shown) {
        this.waiting.delete(session);
      }
      settle();
    };
    this.waiting.set(session, { shown, done });
  }

  tracker(session: vscode.DebugSession): vscode.DebugAdapterTracker {
    const fire = (event: string) => this.events.fire({ session, event });
    /** The requests for the innermost frames. */
    const stackTraces = new Set<number | undefined>();
    return {
      onWillStopSession: () => fire("ended"),
      onExit: () => fire("ended"),
      onWillReceiveMessage: (message: ProtocolMessage) => {
        if (message.command === "stackTrace" && !message.arguments?.startFrame) {
          stackTraces.add(message.seq);
        }
      },
      onDidSendMessage: ({ type, event = "", request_seq: request, body }: ProtocolMessage) => {
        if (type === "event") {
          if (MOVED.has(event)) {
            this.waiting.get(session)?.done();
          } else if (event === "stopped") {
            this.stopped(session);
          }
          fire(event);
        } else if (stackTraces.delete(request) && body?.stackFrames?.length) {
          const [top] = body.stackFrames;
          this.places.set(session.id, `${top?.name}, line ${top?.line}`);
          fire("stackTrace");
        }
      },
    };
  }

  /** The innermost frame that VS Code has received last, as `@main, line 12`. */
  placeOf(session: vscode.DebugSession): string {
    return this.places.get(session.id) ?? "";
  }

  request<Body>(session: vscode.DebugSession, command: string, argument: object): PendingRequest<Body> {
    return this.connections.request(session, command, argument);
  }

  dispose(): void {
    this.waiting.forEach(({ done }) => done());
    this.listener.dispose();
    this.events.dispose();
  }
}
