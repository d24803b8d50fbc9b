package main

import (
	"math/rand"
	"slices"
	"strings"
	"testing"
)

func position(offset int64) *Position { return &Position{Term: 1, Entry: offset, Offset: offset} }

func got(name string, offset, version int64) Element {
	return Element{*position(offset), version, name}
}

// A sound history of one queue. Two writers follow each other. Of an enqueue, a deletion and a replacement nobody got the
// answer, and reads show that they happened; of others reads show nothing.
func soundQueue() ([]QueueOp, Ends) {
	op := func(client string, kind QueueKind, token, call int64) QueueOp {
		return QueueOp{Client: client, Kind: kind, Queue: "q", Token: token, Call: call, Return: call + 10, Outcome: OK, Attempts: 1}
	}
	at := func(op QueueOp, first, last int64) QueueOp {
		op.At, op.Last = position(first), &Position{Term: 1, Entry: first, Offset: last}
		return op
	}
	names := func(op QueueOp, names ...string) QueueOp { op.Names = names; return op }
	targets := func(op QueueOp, offsets ...int64) QueueOp {
		for _, offset := range offsets {
			op.Targets = append(op.Targets, *position(offset))
		}
		return op
	}
	unknown := func(op QueueOp) QueueOp { op.Outcome, op.Error = Unknown, "outcome-unknown"; return op }
	version := func(op QueueOp, version int64) QueueOp { op.IfVersion = version; return op }
	behind := func(op QueueOp, last *Position) QueueOp { op.Guarded, op.IfLast = true, last; return op }
	reads := func(client string, call int64, elements ...Element) QueueOp {
		read := op(client, Retrieve, 0, call)
		read.Pages, read.Elements = 1, elements
		return read
	}
	// The first three messages are one entry.
	second, third := got("a:2", 2, 2), got("a:3", 3, 3)
	second.Position.Entry, third.Position.Entry = 1, 1
	replaced := func(name string, version int64) Element { it := second; it.Name, it.Version = name, version; return it }
	again := behind(names(at(op("a", Enqueue, 1, 32), 1, 3), "a:1", "a:2", "a:3"), nil)
	again.Again, again.Duplicate, again.Return = true, true, 38
	refused := names(op("a", Enqueue, 1, 260), "a:6")
	refused.Outcome, refused.Error = Fail, "fenced"
	took := at(op("b", Fence, 2, 240), 8, 8)
	took.IfToken = 1
	stale := reads("stale", 425, got("a:1", 1, 1), second, third)
	stale.Stale = true
	replace := version(targets(names(at(op("a", Replace, 1, 40), 5, 5), "a:4"), 2), 2)
	replaceB := version(targets(names(op("b", Replace, 2, 300), "b:3"), 2), 5)
	replace.Targets[0], replaceB.Targets[0] = second.Position, second.Position
	ops := []QueueOp{
		at(op("a", Fence, 1, 0), 0, 0),
		op("a", Rewrite, 1, 11), // a cut of nothing
		behind(names(at(op("a", Enqueue, 1, 20), 1, 3), "a:1", "a:2", "a:3"), nil),
		names(at(op("guest", Enqueue, 0, 25), 4, 4), "g:1"),
		again,
		replace,
		reads("first", 60, got("a:1", 1, 1), replaced("a:4", 5), third, got("g:1", 4, 4)),
		targets(at(op("a", Delete, 1, 80), 6, 6), 1),
		behind(unknown(names(op("a", Enqueue, 1, 100), "a:5")), position(4)),
		unknown(names(op("guest", Enqueue, 0, 105), "g:never")),
		reads("second", 210, replaced("a:4", 5), third, got("g:1", 4, 4), got("a:5", 7, 7)),
		op("b", AskFence, 1, 230),
		took,
		refused,
		targets(names(at(op("b", Rewrite, 2, 280), 9, 10), "b:1", "b:2"), 2),
		unknown(replaceB),
		targets(unknown(op("b", Delete, 2, 320)), 10),
		reads("third", 340, replaced("b:3", 11), got("b:1", 9, 9)),
		reads("fourth", 360, replaced("b:3", 11), got("b:1", 9, 9)),
		targets(at(op("b", Trim, 2, 380), 12, 12), 2),
		names(at(op("last", Enqueue, 0, 400), 13, 13), "l:1"),
		reads("fifth", 420, got("b:1", 9, 9), got("l:1", 13, 13)),
		stale,
	}
	for i := range ops {
		for j, it := range ops[i].Elements {
			if it.Position.Offset == 10 {
				ops[i].Elements[j].Position.Entry = 9
			}
		}
		for j, it := range ops[i].Targets {
			if it.Offset == 10 {
				ops[i].Targets[j].Entry = 9
			}
			if it.Offset == 2 {
				ops[i].Targets[j].Entry = 1
			}
		}
	}
	rand.New(rand.NewSource(1)).Shuffle(len(ops), func(i, j int) { ops[i], ops[j] = ops[j], ops[i] })
	return ops, Ends{
		Queues:  map[string][]Element{"q": {got("b:1", 9, 9), got("l:1", 13, 13)}},
		Records: []Record{{"q", 0, 9, "b:1"}, {"q", 0, 11, "b:3"}, {"q", 0, 13, "l:1"}},
	}
}

func TestASoundHistoryOfAQueueIsAccepted(t *testing.T) {
	ops, ends := soundQueue()
	if wrong := CheckQueues(ops, ends); len(wrong) > 0 {
		t.Fatal(strings.Join(wrong, "\n"))
	}
}

// Each harm is found by the check that is there for it; the words of its sentence are compared.
func TestHarmedHistoriesOfQueuesAreRefused(t *testing.T) {
	by := func(ops []QueueOp, client string, kind QueueKind) *QueueOp {
		for i := range ops {
			if ops[i].Client == client && ops[i].Kind == kind && !ops[i].Again {
				return &ops[i]
			}
		}
		panic("the sound history has no such operation")
	}
	named := func(ops []QueueOp, name string) *QueueOp {
		for i := range ops {
			if slices.Contains(ops[i].Names, name) && !ops[i].Again {
				return &ops[i]
			}
		}
		panic("the sound history has no such operation")
	}
	again := func(ops []QueueOp) *QueueOp {
		return &ops[slices.IndexFunc(ops, func(op QueueOp) bool { return op.Again })]
	}
	shows := func(ops []QueueOp, client string, elements ...Element) {
		read := by(ops, client, Retrieve)
		read.Elements = append(read.Elements, elements...)
		slices.SortFunc(read.Elements, func(a, b Element) int { return int(a.Position.Offset - b.Position.Offset) })
	}
	hides := func(ops []QueueOp, client string, offsets ...int64) {
		read := by(ops, client, Retrieve)
		read.Elements = slices.DeleteFunc(read.Elements, func(it Element) bool { return slices.Contains(offsets, it.Position.Offset) })
	}
	unanswered := func(op *QueueOp) { op.At, op.Last, op.Outcome = nil, nil, Unknown }
	third := Element{Position{1, 1, 3}, 3, "a:3"}
	harms := map[string]struct {
		says string
		harm func(ops *[]QueueOp, ends *Ends)
	}{
		"an acknowledged element is lost": {"l:1 at 1.13.13 was there, and fifth did not get it", func(ops *[]QueueOp, _ *Ends) {
			hides(*ops, "fifth", 13)
		}},
		"an element is lost that no earlier owner can have cut": {"l:1 at 1.13.13 was there, and fifth did not get it", func(ops *[]QueueOp, _ *Ends) {
			hides(*ops, "fifth", 13)
			*ops = append(*ops, QueueOp{Client: "a", Kind: Rewrite, Queue: "q", Token: 1, Call: 110, Return: 120, Outcome: Unknown})
		}},
		"an element without an answer is seen, and lost": {"a:5 at 1.7.7 was there, and later did not get it", func(ops *[]QueueOp, _ *Ends) {
			read := *by(*ops, "second", Retrieve)
			read.Client, read.Call, read.Return, read.Elements = "later", 222, 224, slices.Clone(read.Elements[:3])
			*ops = append(*ops, read)
		}},
		"a deleted element comes back": {"second got a:1 at 1.1.1 of node 0", func(ops *[]QueueOp, _ *Ends) {
			shows(*ops, "second", got("a:1", 1, 1))
		}},
		"an element comes back whose deletion had no answer": {"gone, by delete of b", func(ops *[]QueueOp, _ *Ends) {
			shows(*ops, "fourth", Element{Position{1, 9, 10}, 10, "b:2"})
		}},
		"a rewritten element comes back": {"gone, by rewrite of b", func(ops *[]QueueOp, _ *Ends) {
			shows(*ops, "fourth", got("g:1", 4, 4))
		}},
		"an element is there behind a cut that found none": {"gone, by rewrite of a", func(ops *[]QueueOp, _ *Ends) {
			by(*ops, "a", Rewrite).Call, by(*ops, "a", Rewrite).Return = 35, 38
		}},
		"a trimmed element comes back": {"gone, by trim of b", func(ops *[]QueueOp, _ *Ends) {
			shows(*ops, "fifth", Element{Position{1, 1, 2}, 11, "b:3"})
		}},
		"an element that nobody sent": {"which nobody sent", func(ops *[]QueueOp, _ *Ends) {
			shows(*ops, "first", got("a stranger:1", 8, 8))
		}},
		"other bytes": {"got a:1 damaged", func(ops *[]QueueOp, _ *Ends) {
			by(*ops, "first", Retrieve).Elements[0].Name = namedBy("a:1", "else")
		}},
		"an old content": {"had replaced it", func(ops *[]QueueOp, _ *Ends) {
			by(*ops, "second", Retrieve).Elements[0] = Element{Position{1, 1, 2}, 2, "a:2"}
		}},
		"an old content after one without an answer was seen": {"had replaced it", func(ops *[]QueueOp, _ *Ends) {
			by(*ops, "fourth", Retrieve).Elements[0] = Element{Position{1, 1, 2}, 5, "a:4"}
		}},
		"a content before its replacement": {"got b:3 before it was sent", func(ops *[]QueueOp, _ *Ends) {
			by(*ops, "first", Retrieve).Elements[1] = Element{Position{1, 1, 2}, 11, "b:3"}
		}},
		"an element before its call": {"got l:1 before it was sent", func(ops *[]QueueOp, _ *Ends) {
			shows(*ops, "stale", got("l:1", 13, 13))
			by(*ops, "stale", Retrieve).Return = 50
		}},
		"an element at two places": {"is at 1.4.4, and at 1.5.5 for", func(ops *[]QueueOp, _ *Ends) {
			by(*ops, "second", Retrieve).Elements[2] = got("g:1", 5, 5)
		}},
		"an element twice": {"is at 1.7.7, and at 1.8.8 for", func(ops *[]QueueOp, _ *Ends) {
			shows(*ops, "second", got("a:5", 8, 8))
		}},
		"two elements at one place": {"are both at offset 9", func(ops *[]QueueOp, _ *Ends) {
			named(*ops, "l:1").At = position(9)
			named(*ops, "l:1").Last = position(9)
		}},
		"a read out of order": {"behind offset 9", func(ops *[]QueueOp, _ *Ends) {
			slices.Reverse(by(*ops, "third", Retrieve).Elements)
		}},
		"another version than the element's": {"was never replaced", func(ops *[]QueueOp, _ *Ends) {
			by(*ops, "first", Retrieve).Elements[0].Version = 5
		}},
		"a content with two versions": {"has version 11, and 12 for", func(ops *[]QueueOp, _ *Ends) {
			by(*ops, "fourth", Retrieve).Elements[0].Version = 12
		}},
		"a content of another element": {"was to replace 1.1.2, and is at 1.1.3", func(ops *[]QueueOp, _ *Ends) {
			by(*ops, "second", Retrieve).Elements[1] = Element{third.Position, 5, "a:4"}
		}},
		"a refused element is there": {"though its writer was told fenced", func(ops *[]QueueOp, _ *Ends) {
			shows(*ops, "third", got("a:6", 12, 12))
		}},
		"a refused content is there": {"b:3 is the content of 1.1.2, though", func(ops *[]QueueOp, _ *Ends) {
			named(*ops, "b:3").Outcome, named(*ops, "b:3").Error = Fail, "no-leader"
		}},
		"half an enqueue": {"got a:1 and not a:3, which came with it", func(ops *[]QueueOp, _ *Ends) {
			unanswered(named(*ops, "a:1"))
			unanswered(again(*ops))
			hides(*ops, "first", 3)
		}},
		"messages of one entry that do not adjoin": {"3 messages of a:1 have 4 offsets", func(ops *[]QueueOp, _ *Ends) {
			named(*ops, "a:1").Last = position(4)
		}},
		"a rewrite beside what it took away": {"beside the effect of the rewrite of b", func(ops *[]QueueOp, _ *Ends) {
			unanswered(named(*ops, "b:1"))
			shows(*ops, "third", third)
		}},
		"a stale read of half a rewrite": {"beside the effect of the rewrite of b", func(ops *[]QueueOp, _ *Ends) {
			shows(*ops, "stale", got("b:1", 9, 9))
		}},
		"half a cut": {"beside the effect of the rewrite of b", func(ops *[]QueueOp, _ *Ends) {
			unanswered(named(*ops, "b:1"))
			*ops = append(*ops, QueueOp{Client: "half", Kind: Retrieve, Queue: "q", Pages: 1, Call: 300, Return: 305, Outcome: OK,
				Elements: []Element{{Position{1, 1, 2}, 5, "a:4"}, third}})
		}},
		"a cut whose messages do not come": {"b:1 at 1.9.9 was there, and fourth did not get it", func(ops *[]QueueOp, _ *Ends) {
			unanswered(named(*ops, "b:1"))
			by(*ops, "third", Retrieve).Return = 341
			hides(*ops, "third", 9)
			hides(*ops, "fourth", 9)
		}},
		"a change with an old token": {"with token 1 began after fence 2 was set, and succeeded", func(ops *[]QueueOp, _ *Ends) {
			named(*ops, "a:6").Outcome, named(*ops, "a:6").At, named(*ops, "a:6").Last = OK, position(12), position(12)
		}},
		"a change with an old token that had nothing to do": {"and succeeded", func(ops *[]QueueOp, _ *Ends) {
			*ops = append(*ops, QueueOp{Client: "a", Kind: Delete, Queue: "q", Token: 1, Targets: []Position{*position(1)}, Call: 270,
				Return: 275, Outcome: OK})
		}},
		"an unanswered change that takes effect behind the next fence": {"with token 1 is at 1.7.7, and fence 2 at 1.6.6", func(ops *[]QueueOp, _ *Ends) {
			by(*ops, "b", Fence).At = position(6)
			by(*ops, "a", Delete).At = position(5)
		}},
		"a fence that another one preceded": {"and not 0 as it says", func(ops *[]QueueOp, _ *Ends) {
			by(*ops, "b", Fence).IfToken = 0
		}},
		"a fence that is forgotten": {"was told of fence 0 after fence 1 was set", func(ops *[]QueueOp, _ *Ends) {
			by(*ops, "b", AskFence).Token = 0
		}},
		"a fence that nobody set": {"was told of fence 7, which nobody had set", func(ops *[]QueueOp, _ *Ends) {
			by(*ops, "b", AskFence).Token = 7
		}},
		"a replacement that is done twice": {"b:3 was taken a second time", func(ops *[]QueueOp, _ *Ends) {
			op := *named(*ops, "b:3")
			op.Again, op.Outcome, op.At, op.Last = true, OK, position(14), position(14)
			*ops = append(*ops, op)
		}},
		"an enqueue that is taken twice": {"was taken a second time", func(ops *[]QueueOp, _ *Ends) {
			again(*ops).Duplicate = false
		}},
		"an enqueue with other positions after a retry": {"is at 1.1.1, and at 1.5.5 for a", func(ops *[]QueueOp, _ *Ends) {
			again(*ops).At, again(*ops).Last = position(5), position(7)
		}},
		"an enqueue that is forgotten": {"though it had been acknowledged", func(ops *[]QueueOp, _ *Ends) {
			again(*ops).Outcome, again(*ops).Error, again(*ops).At = Fail, "last-mismatch", nil
		}},
		"a replacement of another version": {"b:3 replaced version 2 of 1.1.2, and its version was 5", func(ops *[]QueueOp, _ *Ends) {
			named(*ops, "b:3").IfVersion = 2
		}},
		"a guard that does not hold": {"and not behind offset 3 as its guard says", func(ops *[]QueueOp, _ *Ends) {
			named(*ops, "a:5").IfLast = &third.Position
		}},
		"a refusal for no cause": {"the replace of a was refused with unknown-element, for no cause", func(ops *[]QueueOp, _ *Ends) {
			*ops = append(*ops, QueueOp{Client: "a", Kind: Replace, Queue: "q", Names: []string{"a:9"}, Call: 62, Return: 64,
				Targets: []Position{*position(4)}, Outcome: Fail, Error: "unknown-element"})
		}},
		"a guard that holds, and is refused": {"the enqueue of a was refused with last-mismatch, for no cause", func(ops *[]QueueOp, _ *Ends) {
			*ops = append(*ops, QueueOp{Client: "a", Kind: Enqueue, Queue: "q", Token: 1, Names: []string{"a:9"}, Call: 62, Return: 64,
				Guarded: true, IfLast: position(4), Outcome: Fail, Error: "last-mismatch"})
		}},
		"a fence for no cause": {"the enqueue of a was refused with fenced, for no cause", func(ops *[]QueueOp, _ *Ends) {
			named(*ops, "a:6").Call, named(*ops, "a:6").Return = 215, 219
		}},
		"a problem that nobody expects": {"was told of q: bad-request", func(ops *[]QueueOp, _ *Ends) {
			named(*ops, "a:6").Error, named(*ops, "a:6").Unexpected = "bad-request", true
		}},
		"a change before one that was acknowledged before it": {"was acknowledged before the", func(ops *[]QueueOp, _ *Ends) {
			by(*ops, "a", Delete).Call, by(*ops, "a", Delete).Return = 241, 243
			by(*ops, "b", Fence).Call, by(*ops, "b", Fence).Return = 226, 228
		}},
		"a term that falls": {"is before", func(ops *[]QueueOp, _ *Ends) {
			by(*ops, "a", Delete).At = &Position{2, 6, 6}
		}},
		"a consumer gets what is deleted": {"got a:1 at offset 1, which is deleted", func(_ *[]QueueOp, ends *Ends) {
			ends.Records = append(ends.Records, Record{"q", 0, 1, "a:1"})
		}},
		"a consumer gets what is replaced": {"got a:4 at offset 5, which is deleted or replaced", func(_ *[]QueueOp, ends *Ends) {
			ends.Records = append(ends.Records, Record{"q", 0, 5, "a:4"})
		}},
		"a consumer gets what a rewrite withdrew": {"got a:5 at offset 7, which is deleted", func(_ *[]QueueOp, ends *Ends) {
			ends.Records = append(ends.Records, Record{"q", 0, 7, "a:5"})
		}},
		"a consumer gets what nobody sent": {"got a:6 at offset 14, which nobody sent", func(_ *[]QueueOp, ends *Ends) {
			ends.Records = append(ends.Records, Record{"q", 0, 14, "a:6"})
		}},
		"a consumer gets other bytes": {"got l:1 damaged: \"\" at offset 13, and native readers l:1", func(_ *[]QueueOp, ends *Ends) {
			ends.Records[2].Name = namedBy("l:1", "")
		}},
		"a consumer lacks an element": {"did not get l:1 at offset 13, and native readers did", func(_ *[]QueueOp, ends *Ends) {
			ends.Records = ends.Records[:2]
		}},
		"a consumer lacks a trimmed element": {"did not get a:2 at 1.1.2, which nobody took away", func(_ *[]QueueOp, ends *Ends) {
			ends.Records = slices.Delete(ends.Records, 1, 2)
		}},
		"a consumer gets a record of no queue": {"which nobody used", func(_ *[]QueueOp, ends *Ends) {
			ends.Records = append(ends.Records, Record{"else", 0, 14, "l:1"})
		}},
	}
	for name, it := range harms {
		t.Run(name, func(t *testing.T) {
			ops, ends := soundQueue()
			it.harm(&ops, &ends)
			wrong := strings.Join(CheckQueues(ops, ends), "\n")
			if !strings.Contains(wrong, it.says) {
				t.Fatalf("not found, but this was: %q", wrong)
			}
		})
	}
}
