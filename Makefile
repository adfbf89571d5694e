# Installs what `cargo build` makes, with manual pages and completions. Packagers set DESTDIR.
#
#   make install                        below /usr/local, as root
#   make install PREFIX=~/.local        for one user
#   make uninstall [PREFIX=…]

PREFIX ?= /usr/local
DESTDIR ?=
# Where the built files lie; `make build` makes them.
BUILT ?= target/dist

bin = $(DESTDIR)$(PREFIX)/bin
lib = $(DESTDIR)$(PREFIX)/lib/pagetide
share = $(DESTDIR)$(PREFIX)/share
version = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
pages = $(notdir $(wildcard man/*.1))

.PHONY: build install uninstall

# The library lies beside the program: it need not carry one.
build:
	PAGETIDE_CARRY=no cargo build --profile dist --workspace --locked

install:
	@test -e $(BUILT)/pagetide || { echo 'make: $(BUILT)/pagetide is missing: make build' >&2; exit 1; }
	install -D -m 755 $(BUILT)/pagetide $(bin)/pagetide
	install -D -m 644 $(BUILT)/libpagetide_preload.so $(lib)/libpagetide_preload.so
	install -D -m 644 include/pagetide.h $(DESTDIR)$(PREFIX)/include/pagetide.h
	install -d -m 755 $(share)/man/man1 $(share)/pkgconfig
	sed -e 's#@PREFIX@#$(PREFIX)#; s#@VERSION@#$(version)#' packaging/pagetide.pc.in > $(share)/pkgconfig/pagetide.pc
	install -m 644 $(addprefix man/,$(pages)) $(share)/man/man1
	install -D -m 644 completions/pagetide.bash $(share)/bash-completion/completions/pagetide
	install -D -m 644 completions/_pagetide $(share)/zsh/site-functions/_pagetide
	install -D -m 644 completions/pagetide.fish $(share)/fish/vendor_completions.d/pagetide.fish

uninstall:
	rm -f $(bin)/pagetide $(lib)/libpagetide_preload.so $(addprefix $(share)/man/man1/,$(pages))
	rm -f $(DESTDIR)$(PREFIX)/include/pagetide.h $(share)/pkgconfig/pagetide.pc
	rm -f $(share)/bash-completion/completions/pagetide $(share)/zsh/site-functions/_pagetide
	rm -f $(share)/fish/vendor_completions.d/pagetide.fish
	-rmdir $(lib)
