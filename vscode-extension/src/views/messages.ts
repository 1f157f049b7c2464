// Messages between the pages in the panel and the extension.  A page shows the answer to one request at each stop.

import type { SourceLine } from "../pages/messages";

/** `Choice` is what the user has chosen to see: further arguments of the request. */
export type ToView<Answer, Choice = object> =
  | { kind: "answer"; answer: Answer }
  | { kind: "status"; text: string }
  | { kind: "choice"; choice: Choice };

export type FromView<Choice = object> =
  /** `choice` is the one that VS Code has kept with the page. */
  | { kind: "ready"; choice: Partial<Choice> }
  | { kind: "choose"; choice: Choice }
  | { kind: "openLine"; target: SourceLine }
  /** Go to the moment after this number of statements. */
  | { kind: "goTo"; statements: number }
  | { kind: "viewTensor"; expression: string };
