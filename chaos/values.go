package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/crc32"
)

// A value is known by its name, `CLIENT:NUMBER`, which is the record's key; its bytes follow from that. librdkafka.py makes
// the same ones. Mostly small; now and then larger than what a journal takes inline.
func valueOf(name string) []byte {
	digest := sha256.Sum256([]byte(name))
	sum := crc32.ChecksumIEEE([]byte(name))
	size := 10 + sum%2000
	if sum%100 == 99 {
		size = 100_000 + sum%500_000
	}
	piece := []byte(hex.EncodeToString(digest[:]))
	return bytes.Repeat(piece, int(size)/len(piece)+1)[:size]
}

// nameOf is the name of what was read, or of what it is instead.
func nameOf(key, value []byte) string {
	name := string(key)
	if !bytes.Equal(value, valueOf(name)) {
		return fmt.Sprintf("%s damaged: %x", name, sha256.Sum256(value))
	}
	return name
}
