// The values near the place where the program stands, the abnormal first.  What is drawn: webview/statistics.

import * as vscode from "vscode";
import { DrawnView } from "./pageView";
import { Sessions } from "./sessionEvents";

export class Statistics extends DrawnView {
  readonly request = "nncdbg/nearby";

  constructor(extension: vscode.Uri, sessions: Sessions) {
    super(extension, sessions, "statistics", "Statistics");
  }
}
