// Contributions of installed extensions.

import * as vscode from "vscode";

interface Manifest {
  contributes?: Record<string, unknown>;
}

/** Whether an installed extension contributes an item with these properties, as `commands` with `{command: ...}`. */
export function declares(point: "commands" | "debuggers", properties: Record<string, string>): boolean {
  const items = (each: vscode.Extension<unknown>) => [(each.packageJSON as Manifest).contributes?.[point] ?? []].flat() as Record<string, unknown>[];
  const matches = (item: Record<string, unknown>) => Object.entries(properties).every(([name, value]) => item[name] === value);
  return vscode.extensions.all.some((each) => items(each).some(matches));
}
