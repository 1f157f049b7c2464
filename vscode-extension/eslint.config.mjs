// Lint rules that use types.

import tseslint from "typescript-eslint";

export default tseslint.config(
  tseslint.configs.recommendedTypeChecked,
  {
    languageOptions: { parserOptions: { project: ["tsconfig.json", "src/webview/tsconfig.json"], tsconfigRootDir: import.meta.dirname } },
    linterOptions: { reportUnusedDisableDirectives: "error" },
  },
  {
    // VS Code declares debug configurations and adapter messages as `any`. Arguments and returns of functions are typed.
    files: ["src/{environment,model,runForm,session,tensor,views}/*.ts"],
    rules: {
      "@typescript-eslint/no-unsafe-argument": "off",
      "@typescript-eslint/no-unsafe-assignment": "off",
      "@typescript-eslint/no-unsafe-member-access": "off",
    },
  },
);
