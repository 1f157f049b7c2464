// The view *Runs*: the journals of the workspace as a tree.

import * as vscode from "vscode";
import type { Journal } from "./journal";
import { type Row, childrenOf, itemOf, journalRow } from "./rows";

export class RunsTree implements vscode.TreeDataProvider<Row>, vscode.Disposable {
  private readonly changed = new vscode.EventEmitter<void>();
  readonly onDidChangeTreeData = this.changed.event;
  private readonly tree: vscode.TreeView<Row>;
  /** The journals that are read: those that are expanded while the view is visible. */
  private readonly followed = new Map<Journal, vscode.Disposable>();
  private readonly expanded = new Set<Journal>();
  private readonly listeners = new Map<Journal, vscode.Disposable>();
  private journals: readonly Journal[] = [];

  constructor() {
    this.tree = vscode.window.createTreeView<Row>("nncdbg.runs", { treeDataProvider: this, showCollapseAll: true });
    this.tree.onDidChangeVisibility(() => this.follow());
    this.tree.onDidExpandElement(({ element }) => this.expand(element, true));
    this.tree.onDidCollapseElement(({ element }) => this.expand(element, false));
  }

  show(journals: readonly Journal[]): void {
    for (const gone of this.journals.filter((each) => !journals.includes(each))) {
      this.expanded.delete(gone);
      this.listeners.get(gone)?.dispose();
      this.listeners.delete(gone);
    }
    for (const added of journals.filter((each) => !this.journals.includes(each))) {
      this.listeners.set(added, added.onDidChange(() => this.changed.fire()));
    }
    this.journals = journals;
    this.changed.fire();
    this.follow();
  }

  private expand({ kind, journal }: Row, open: boolean): void {
    if (kind === "journal") {
      this.expanded[open ? "add" : "delete"](journal);
      this.follow();
    }
  }

  private follow(): void {
    const wanted = new Set(this.tree.visible ? this.expanded : []);
    for (const [journal, following] of [...this.followed]) {
      if (!wanted.has(journal)) {
        following.dispose();
        this.followed.delete(journal);
      }
    }
    for (const journal of wanted) {
      if (!this.followed.has(journal)) {
        this.followed.set(journal, journal.follow());
      }
    }
  }

  async getChildren(row?: Row): Promise<Row[]> {
    if (!row) {
      return this.journals.map(journalRow);
    }
    // A journal that is open from the start sends no event.
    this.expand(row, true);
    const { journal } = row;
    if (!journal.log && !journal.error) {
      await journal.refresh();
    }
    return childrenOf(row);
  }

  getTreeItem(row: Row): vscode.TreeItem {
    return itemOf(row, this.journals.length === 1);
  }

  dispose(): void {
    [...this.followed.values(), ...this.listeners.values()].forEach((each) => void each.dispose());
    this.tree.dispose();
    this.changed.dispose();
  }
}
