"""One function per table: from loaded runs to rows, each beside the paper's own number."""
