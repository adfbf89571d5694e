// Trees that grow and are dropped, beside memory of C's.
package main

// #include <stdlib.h>
// #include <string.h>
import "C"

import (
	"fmt"
	"unsafe"
)

type tree struct{ left, right *tree }

func grow(depth int) *tree {
	if depth == 0 {
		return &tree{}
	}
	return &tree{grow(depth - 1), grow(depth - 1)}
}

func (t *tree) count() int {
	if t.left == nil {
		return 1
	}
	return 1 + t.left.count() + t.right.count()
}

func main() {
	rows, state, digest := map[int]string{}, uint32(1), 0
	bytes := C.size_t(64 << 20)
	block := C.malloc(bytes)
	C.memset(block, 7, bytes)
	for step := 0; step < 1500000; step++ {
		state = state*1103515245 + 12345
		key := int(state>>4) % 500000
		if step%6 == 5 {
			delete(rows, key)
		} else {
			rows[key] = fmt.Sprint("note ", key, step)
		}
	}
	for round := 0; round < 3; round++ {
		digest += grow(19).count()
	}
	for key := 0; key < 500000; key++ {
		for _, letter := range rows[key] {
			digest = (digest*31 + int(letter)) % 1000000007
		}
	}
	view := unsafe.Slice((*byte)(block), int(bytes))
	for at := 0; at < len(view); at += 4096 {
		digest += int(view[at])
	}
	fmt.Println(len(rows), digest)
	C.free(block)
}
