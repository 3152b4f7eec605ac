//! Names that tools run, load or obey on their own.

pub(super) const GIT: &str = "Git runs what hooks and configuration name, at the next git command in this tree";
pub(super) const OTHER_VCS: &str =
    "another version control tool runs hooks, aliases or tools that this configuration names";
pub(super) const EDITOR: &str = "an editor runs tasks, settings or extensions from here when the folder is opened";
pub(super) const SHELL: &str = "a shell runs it when the directory is entered";
pub(super) const CI: &str = "a CI service runs it, with the secrets of the project, at the next push";
pub(super) const BUILD: &str = "a build runs commands or code from it";
pub(super) const PACKAGE: &str =
    "a package manager runs its scripts or plug-ins, or fetches code that it names, at install";
pub(super) const TEST: &str = "a test runner or linter loads code or plug-ins from it";
pub(super) const CONTAINER: &str = "a container is built or started from it, with its mounts and privileges";
pub(super) const AGENT: &str = "a coding agent on the host runs commands or follows instructions from it";
pub(super) const INTERPRETER: &str = "an interpreter loads it at every start from this directory";
pub(super) const SYSTEM: &str =
    "a login shell, a service manager, a desktop or a client runs it if the tree is a home or system directory";

/// A reason, and its patterns separated by spaces; the first match gives the reason.
pub(super) const TABLE: &[(&str, &str)] = &[
    // All of `.git`: config, hooks, info/attributes, and files of later versions.
    (GIT, ".git/** .git git~1/**"),
    ("it can switch on filters, diff and merge drivers that the user's configuration names", ".gitattributes"),
    ("it decides which files the next sandbox of this folder hides", ".brigignore"),
    ("it decides what the next sandbox of this folder may do, if you trust it", ".brig.toml"),
    ("it names repositories that are cloned and paths that they are put in", ".gitmodules"),
    (
        GIT,
        ".gitconfig .husky/** .githooks/** hooks/pre-* hooks/post-* hooks/commit-msg hooks/prepare-commit-msg \
         .pre-commit-config.yaml .pre-commit-hooks.yaml lefthook.yml .lefthook.yml lefthook.yaml .overcommit.yml \
         .lintstagedrc* lefthook-local.y*ml lefthook.toml lefthook.json .gitlint",
    ),
    (
        OTHER_VCS,
        ".hg/** .hg .hgrc hgrc .hgsub .jj/** .jj .sl/** .svn/** .bzr/** .pijul/** _darcs/** .p4config .repo/**",
    ),
    (GIT, "lint-staged.config.*"),
    (
        EDITOR,
        ".vscode/** *.code-workspace .idea/** *.iml .fleet/** .zed/** .vs/** .nvim.lua .nvim/** .vim/** .lvimrc \
         .local.vimrc .helix/** .kakrc .kate-project* .ycm_extra_conf.py .clangd .projectile .lapce/** \
         .settings/** .classpath nbproject/** .run/** *.xcodeproj/** *.xcworkspace/** .nvimrc .exrc .vimrc \
         .dir-locals.el .dir-locals-2.el .sublime-project *.sublime-project",
    ),
    (CONTAINER, ".devcontainer/** .devcontainer.json .gitpod.yml"),
    (
        AGENT,
        ".mcp.json mcp.json .opencode/** opencode.json* .opencode.json .kiro/** .windsurf/** .windsurfrules \
         .codeium/** .continue/** .continuerc.json .roo/** .roomodes .roorules* .cline/** .clinerules \
         .clinerules/** .kilocode/** .kilocodemodes .amazonq/** .augment/** .augment-guidelines .trae/** .qwen/** \
         .qoder/** .crush/** crush.json .crush.json .goose/** .goosehints .junie/** .factory/** .openhands/** \
         .amp/** .agents/** .agent/** .copilot/** .github/instructions/** .github/prompts/** .github/agents/** \
         .github/chatmodes/** .github/hooks/** .tabnine/** .sourcegraph/** .aiassistant/** .void/** .vibe/** \
         .aider* gemini.md qwen.md crush.md warp.md agent.md claude.local.md .claude/** .cursor/** .cursorrules \
         .codex/** .gemini/** claude.md agents.md .github/copilot-instructions.md",
    ),
    (SHELL, ".envrc"),
    ("tools load variables such as PATH or LD_PRELOAD from it", ".env .env.*"),
    (
        SHELL,
        "mise.toml .mise.toml .mise/** mise.*.toml .mise.*.toml .rtx.toml .nvmrc .node-version .python-version \
         .ruby-version .sdkmanrc .java-version .devenv/** devenv.nix devenv.yaml .flox/** .tool-versions .autoenv \
         flake.nix shell.nix",
    ),
    (BUILD, "default.nix"),
    (SHELL, "devbox.json"),
    (
        CI,
        ".github/workflows/** .github/actions/** action.yml action.yaml .gitlab-ci.yml .gitlab/ci/** \
         .gitlab-ci/** jenkinsfile* .circleci/** .travis.yml .drone.yml .woodpecker.yml .woodpecker/** \
         .buildkite/** .cirrus.yml .cirrus.star .appveyor.yml appveyor.yml azure-pipelines*.yml \
         bitbucket-pipelines.yml .teamcity/** .forgejo/workflows/** .gitea/workflows/** .builds/*.yml .build.yml \
         cloudbuild.yaml buildspec.yml .semaphore/** wercker.yml .netlify/** netlify.toml vercel.json \
         renovate.json .github/dependabot.yml",
    ),
    (
        BUILD,
        "makefile* gnumakefile *.mk cmakelists.txt cmakepresets.json *.cmake meson.build configure configure.ac \
         *.m4 gradlew* mvnw* *.just earthfile magefile.go makefile.toml bakefile* dune dune-project \
         dune-workspace buck buck2 .buckconfig* *.bazel *.bazelrc .bazelversion .bazeliskrc pants.toml xmake.lua \
         premake*.lua meson_options.txt directory.build.* directory.packages.props *.esproj bootstrap autogen.sh \
         *.nix *.tfvars .terraform/** .terraformrc terragrunt.hcl pulumi.yaml metro.config.* remix.config.* \
         angular.json esbuild.* rspack.config.* tsup.config.* craco.config.* .swcrc lerna.json rush.json .moon/** \
         justfile .justfile taskfile.y*ml rakefile build.rs .cargo/config* rust-toolchain* build.gradle* \
         settings.gradle* *.gradle *.gradle.kts gradle/wrapper/** gradle.properties .mvn/** pom.xml build.xml \
         build.sbt project/*.sbt build.zig package.swift build workspace *.bzl sconstruct wscript dodo.py \
         *.csproj *.fsproj *.vbproj *.vcxproj *.props *.targets go.work",
    ),
    (PACKAGE, "go.mod"),
    (
        BUILD,
        "mix.exs rebar.config* build.boot project.clj *.cabal setup.hs gruntfile.* gulpfile.* webpack.config.* \
         vite.config.* rollup.config.* next.config.* nuxt.config.* svelte.config.* astro.config.* babel.config.* \
         .babelrc* postcss.config.* tailwind.config.* turbo.json nx.json tsconfig*.json vagrantfile *.tf tiltfile \
         skaffold.yaml procfile*",
    ),
    (
        PACKAGE,
        "package.json package-lock.json yarn.lock pnpm-lock.yaml pnpm-workspace.yaml .npmrc .pnp.* .pnpmfile.* \
         npm-shrinkwrap.json bun.lock* deno.lock uv.toml pixi.toml pixi.lock .pypirc .condarc hatch.toml \
         constraints*.txt composer.lock .gemrc go.sum mix.lock pubspec.* melos.yaml cartfile* fastfile \
         vendor/bundle/** dotnet-tools.json packages.config conanfile.* vcpkg.json .yarnrc* .yarn/** bunfig.toml \
         binding.gyp",
    ),
    ("programs load and run it by name", "node_modules/**"),
    (
        PACKAGE,
        "deno.json* setup.py setup.cfg pyproject.toml requirements*.txt pipfile* poetry.lock uv.lock \
         environment.yml pip.conf gemfile* *.gemspec .bundle/config extconf.rb composer.json cargo.toml \
         cargo.lock podfile *.podspec brewfile nuget.config",
    ),
    (
        TEST,
        "conftest.py pytest.ini tox.ini noxfile.py .pytest.ini .flake8 ruff.toml .ruff.toml .bandit ava.config.* \
         wdio.conf.* commitlint.config.* .commitlintrc* .xo-config* biome.json* .biome.json* .oxlintrc.json \
         stylelint.config.* spec_helper.rb .simplecov phpstan.neon* rector.php .php-cs-fixer* psalm.xml* \
         behat.yml detekt.yml .semgrep* .trunk/** .mega-linter.yml clippy.toml .clippy.toml .coveragerc .pylintrc \
         pylintrc mypy.ini .eslintrc* eslint.config.* .prettierrc* prettier.config.* .stylelintrc* jest.config.* \
         vitest.config.* karma.conf.* .mocharc* playwright.config.* cypress.config.* .rspec .rubocop.yml \
         phpunit.xml* .phan/config.php .golangci.y*ml .clang-tidy",
    ),
    (
        INTERPRETER,
        "sitecustomize.py usercustomize.py *.pth pyvenv.cfg venv/** .venv/** .rprofile .renviron .irbrc .pryrc \
         .php.ini .user.ini .htaccess .gdbinit* gdbinit *-gdb.py *-gdb.gdb .radare2rc .pythonrc* .jupyter/** \
         .guile .sbclrc .ocamlinit .ghci .iex.exs .erlang .perldb .psqlrc .sqliterc .my.cnf .octaverc startup.jl \
         env/bin/** .lldbinit .ipython/**",
    ),
    (CONTAINER, "dockerfile* *.dockerfile containerfile* docker-compose*.y*ml compose*.y*ml docker-bake.*"),
    ("it decides what, such as secrets, goes into an image", ".dockerignore"),
    (CONTAINER, "chart.yaml kustomization.yaml"),
    (
        SYSTEM,
        ".bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv .zprofile .zlogin \
         .inputrc .tmux.conf .xinitrc .xprofile .xsession .ssh/** .config/** .local/bin/** \
         .local/share/applications/** *.desktop *.service *.timer cron.d/** crontab .direnvrc .curlrc .wgetrc \
         .netrc .gnupg/** .kube/** .aws/** .docker/config.json",
    ),
];
