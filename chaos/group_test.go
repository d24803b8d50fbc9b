package main

import "testing"

func TestAGroupThatLacksARecordIsTold(t *testing.T) {
	logs := map[int32]Log{0: {"a", "b", "c"}, 1: {}}
	group := &Group{got: make(map[int32][]bool)}
	group.note(0, 0)
	group.note(0, 2)
	if wrong := group.lacks(logs); len(wrong) != 1 {
		t.Fatalf("offset 1 is lacking: %v", wrong)
	}
	group.note(0, 1)
	if wrong := group.lacks(logs); len(wrong) != 0 {
		t.Fatal(wrong)
	}
}
