package main

import (
	"math"
	"slices"
	"sort"
)

const never = int64(math.MaxInt64)

// An element of a queue, by the message that was enqueued.
type element struct {
	name string
	op   *QueueOp
	// Its place, if an answer or a read told it.
	at      Position
	isKnown bool
	// From when on it was certainly there, and certainly gone. By is the reason.
	exists, gone int64
	by           string
	// The replacements of which somebody learned.
	contents []content
}

type content struct {
	name    string
	version int64
	op      *QueueOp
	known   int64
}

// All that is known of one queue.
type queueCheck struct {
	wrong *findings
	queue string
	ops   []*QueueOp
	// Changes that were not refused, as far as they can take elements away.
	removers []*QueueOp
	// The place of the first fence that no rewrite of an earlier token can stand behind, by rewrite.
	until map[*QueueOp]int64
	// By the name of the message, and by offset.
	elements map[string]*element
	at       map[int64]*element
	all      []*element // in the order of their answers
	inOrder  []*element // in the order of their places, where these are known
	// Replacements by the name of the content.
	replacements map[string]*QueueOp
	versions     map[string]int64
}

// CheckQueues returns what is wrong with a history of queues, as sentences. An operation without an answer may take
// effect once, at any time after its call, or never. So its effect is accepted, and demanded once a read shows it.
func CheckQueues(ops []QueueOp, ends Ends) []string {
	var wrong findings
	byQueue := make(map[string][]*QueueOp)
	for i, op := range ops {
		byQueue[op.Queue] = append(byQueue[op.Queue], &ops[i])
		if op.Unexpected {
			wrong.add("problem", "%s was told of %s: %s", op.Client, op.Queue, op.Error)
		}
	}
	var queues []string
	for queue := range byQueue {
		queues = append(queues, queue)
	}
	sort.Strings(queues)
	partitions := make(map[string]int32)
	for _, record := range ends.Records {
		partitions[record.Queue] = record.Partition
		if byQueue[record.Queue] == nil {
			wrong.add("stranger", "a consumer got %s of %s, which nobody used", record.Name, record.Queue)
		}
	}
	logs := make(map[int32][]landing)
	for _, queue := range queues {
		q := newQueueCheck(&wrong, queue, byQueue[queue])
		q.checkTimes()
		q.checkVersions()
		q.checkGuards()
		landings := q.landings()
		q.checkFences(landings)
		q.checkRefusals()
		q.checkEnd(ends)
		logs[partitions[queue]] = append(logs[partitions[queue]], landings...)
	}
	for partition, landings := range logs {
		checkLandings(&wrong, partition, landings)
	}
	return wrong.sentences()
}

func newQueueCheck(wrong *findings, queue string, ops []*QueueOp) *queueCheck {
	q := &queueCheck{wrong: wrong, queue: queue, ops: ops,
		elements: make(map[string]*element), at: make(map[int64]*element),
		until: make(map[*QueueOp]int64), replacements: make(map[string]*QueueOp), versions: make(map[string]int64)}
	sort.SliceStable(ops, func(i, j int) bool { return ops[i].Return < ops[j].Return })
	for _, op := range ops {
		switch op.Kind {
		case Enqueue, Rewrite:
			for _, name := range op.Names {
				if !op.Again {
					it := &element{name: name, op: op, exists: never, gone: never}
					q.elements[name], q.all = it, append(q.all, it)
				}
			}
		case Replace:
			if !op.Again {
				q.replacements[op.Names[0]] = op
			}
		}
		if op.Outcome != Fail && (op.Kind == Delete || op.Kind == Rewrite || op.Kind == Trim) {
			q.removers = append(q.removers, op)
		}
	}
	for _, op := range q.removers {
		q.until[op] = never
		for _, fence := range ops {
			if fence.Kind == Fence && fence.Outcome == OK && fence.At != nil && fence.Token > op.Token {
				q.until[op] = min(q.until[op], fence.At.Offset)
			}
		}
	}
	for _, op := range ops {
		q.learn(op)
	}
	for _, it := range q.all {
		if it.isKnown {
			q.inOrder = append(q.inOrder, it)
		}
	}
	sort.Slice(q.inOrder, func(i, j int) bool { return q.inOrder[i].at.Offset < q.inOrder[j].at.Offset })
	return q
}

func (q *queueCheck) add(kind, format string, arguments ...any) {
	q.wrong.add(kind, q.queue+": "+format, arguments...)
}

// learn takes places and versions out of answers and reads.
func (q *queueCheck) learn(op *QueueOp) {
	if op.Outcome != OK {
		return
	}
	if op.Again && !op.Duplicate {
		q.add("again", "%s was taken a second time, at %s", op.Names[0], op.At)
	}
	switch {
	case op.Kind == Enqueue || op.Kind == Rewrite && len(op.Names) > 0:
		for i, name := range op.Names {
			at := *op.At
			at.Offset += int64(i)
			q.place(op, name, at)
		}
		if count := op.Last.Offset - op.At.Offset + 1; count != int64(len(op.Names)) {
			q.add("count", "%d messages of %s have %d offsets", len(op.Names), op.Names[0], count)
		}
	case op.Kind == Replace:
		q.replaced(op, op.Names[0], op.Targets[0], op.At.Offset)
	case op.Kind == Retrieve:
		last := int64(-1)
		for _, it := range op.Elements {
			if it.Position.Offset <= last {
				q.add("unordered", "%s got %s behind offset %d", op.Client, it.Position, last)
			}
			last = it.Position.Offset
			if q.replacements[it.Name] != nil {
				q.replaced(op, it.Name, it.Position, it.Version)
			} else if q.place(op, it.Name, it.Position); it.Version != it.Position.Offset {
				q.add("version", "%s at %s was never replaced, and %s got version %d", it.Name, it.Position,
					op.Client, it.Version)
			}
		}
	}
}

func (q *queueCheck) place(by *QueueOp, name string, at Position) {
	it, known := q.elements[name]
	switch {
	case !known:
		q.add("phantom", "%s got %s at %s, which nobody sent", by.Client, name, at)
		return
	case it.op.Outcome == Fail:
		q.add("refused", "%s is at %s, though its writer was told %s", name, at, it.op.Error)
	case it.isKnown && it.at != at:
		q.add("moved", "%s is at %s, and at %s for %s", name, it.at, at, by.Client)
	}
	if there := q.at[at.Offset]; there != nil && there != it {
		q.add("shared", "%s and %s are both at offset %d", there.name, name, at.Offset)
	}
	it.at, it.isKnown = at, true
	q.at[at.Offset] = it
}

func (q *queueCheck) replaced(by *QueueOp, name string, at Position, version int64) {
	op := q.replacements[name]
	if op.Outcome == Fail {
		q.add("refused", "%s is the content of %s, though its writer was told %s", name, at, op.Error)
	}
	if op.Targets[0] != at {
		q.add("moved", "%s was to replace %s, and is at %s for %s", name, op.Targets[0], at, by.Client)
	}
	if was, known := q.versions[name]; known && was != version {
		q.add("moved", "%s has version %d, and %d for %s", name, was, version, by.Client)
	}
	q.versions[name] = version
}

// covers returns true if a change takes an element away if it takes effect behind it.
func (q *queueCheck) covers(op *QueueOp, it *element) bool {
	switch op.Kind {
	case Delete:
		return it.isKnown && slices.Contains(op.Targets, it.at)
	case Trim:
		return !it.isKnown || it.at.Offset <= op.Targets[0].Offset
	case Rewrite:
		if op == it.op {
			return false
		}
		if !it.isKnown {
			return true
		}
		isBehind := len(op.Targets) == 0 || it.at.Offset > op.Targets[0].Offset
		return isBehind && it.at.Offset < q.until[op] && (op.At == nil || it.at.Offset < op.At.Offset)
	}
	return false
}

// isIdle returns true if the only request of a change found nothing to do.
func isIdle(op *QueueOp) bool { return op.Outcome == OK && op.At == nil && op.Attempts == 1 }

// mayBeGone returns the changes that may have taken an element away before a time.
func (q *queueCheck) mayBeGone(it *element, before int64) (by []*QueueOp) {
	for _, op := range q.removers {
		if op.Call < before && !isIdle(op) && q.covers(op, it) {
			by = append(by, op)
		}
	}
	return by
}

// checkTimes goes through answers and reads in the order of their ends. It learns by when elements were there, or gone,
// and compares each read with all that ended before the read began.
func (q *queueCheck) checkTimes() {
	for _, op := range q.ops {
		switch {
		case op.Outcome != OK:
		case op.Kind == Retrieve:
			q.checkRead(op)
		default:
			q.happened(op, op.Return)
			if op.Kind == Replace {
				q.addContent(op.Names[0], op.Return)
			}
		}
	}
}

// happened notes that a change had taken effect by a time.
func (q *queueCheck) happened(op *QueueOp, by int64) {
	for _, name := range op.Names {
		if it := q.elements[name]; it != nil && it.op == op {
			it.exists = min(it.exists, by)
		}
	}
	if !slices.Contains(q.removers, op) {
		return
	}
	for _, it := range q.all {
		// Where the log has the change is unknown: only what was there before its call was there before it for certain.
		isBefore := it.exists < op.Call || op.At != nil || op.Kind == Delete
		if it.isKnown && isBefore && q.covers(op, it) && it.gone > by {
			it.gone, it.by = by, string(op.Kind)+" of "+op.Client
		}
	}
}

func (q *queueCheck) addContent(name string, known int64) *content {
	op := q.replacements[name]
	it := q.at[op.Targets[0].Offset]
	if it == nil {
		q.add("phantom", "%s replaced %s, which nobody enqueued", name, op.Targets[0])
		return nil
	}
	for i := range it.contents {
		if it.contents[i].name == name {
			return &it.contents[i]
		}
	}
	it.contents = append(it.contents, content{name, q.versions[name], op, known})
	return &it.contents[len(it.contents)-1]
}

func (q *queueCheck) checkRead(read *QueueOp) {
	shown := make(map[*element]bool)
	for _, got := range read.Elements {
		it := q.at[got.Position.Offset]
		if it == nil {
			continue // which is told already
		}
		shown[it] = true
		if it.op.Call > read.Return {
			q.add("early", "%s got %s before it was sent", read.Client, it.name)
		}
		if it.gone < read.Call && !read.Stale {
			q.add("back", "%s got %s at %s of node %d %.3f s after it was gone, by %s", read.Client, it.name, it.at,
				read.Node, float64(read.Call-it.gone)/1e9, it.by)
		}
		q.checkContent(read, it, got)
	}
	for it := range shown {
		it.exists = min(it.exists, read.Return)
	}
	q.checkWhole(read, shown)
	if read.Stale {
		return
	}
	for _, it := range q.all {
		if it.exists >= read.Call || shown[it] || it.gone <= read.Return {
			continue
		}
		by := q.mayBeGone(it, read.Return)
		switch len(by) {
		case 0:
			q.add("lost", "%s at %s was there, and %s did not get it of node %d, though nothing took it away", it.name, it.at,
				read.Client, read.Node)
		case 1:
			// No other change explains it. So that one has taken effect, with all that belongs to it.
			q.happened(by[0], read.Return)
			q.checkCut(read, by[0], shown)
		}
		if it.gone = min(it.gone, read.Return); it.by == "" {
			it.by = "a read of " + read.Client
		}
	}
}

// checkContent demands the latest content that anybody knew of when the read began.
func (q *queueCheck) checkContent(read *QueueOp, it *element, got Element) {
	if op := q.replacements[got.Name]; op != nil {
		if op.Call > read.Return {
			q.add("early", "%s got %s before it was sent", read.Client, got.Name)
		}
		q.addContent(got.Name, read.Return)
	}
	for _, other := range it.contents {
		if !read.Stale && other.known < read.Call && other.version > got.Version {
			q.add("old", "%s got %s of %s at node %d, %.3f s after %s had replaced it", read.Client, got.Name, it.at,
				read.Node, float64(read.Call-other.known)/1e9, other.name)
		}
	}
}

// checkWhole demands all messages of an entry, or none, and a rewrite without what it took away.
func (q *queueCheck) checkWhole(read *QueueOp, shown map[*element]bool) {
	done := make(map[*QueueOp]bool)
	for _, first := range q.inOrder {
		op := first.op
		if !shown[first] || done[op] {
			continue
		}
		done[op] = true
		for _, name := range op.Names {
			it := q.elements[name]
			if !shown[it] && it.gone > read.Return && len(q.mayBeGone(it, read.Return)) == 0 {
				q.add("half", "%s got %s and not %s, which came with it", read.Client, first.name, name)
			}
		}
		if op.Kind == Rewrite {
			q.checkCut(read, op, shown)
		}
	}
}

// checkCut demands that a page shows nothing that a change took away whose effect the same page shows.
func (q *queueCheck) checkCut(read, op *QueueOp, shown map[*element]bool) {
	if read.Pages > 1 {
		return // of which the first may be older
	}
	place := never
	for _, name := range op.Names {
		if it := q.elements[name]; it != nil && it.isKnown {
			place = min(place, it.at.Offset)
		}
	}
	for _, it := range q.inOrder {
		if !shown[it] {
			continue
		}
		isBefore := it.exists < op.Call || it.at.Offset < place && place != never
		if isBefore && q.covers(op, it) {
			q.add("cut", "%s got %s at %s beside the effect of the %s of %s, which took it away", read.Client, it.name,
				it.at, op.Kind, op.Client)
		}
	}
}

// checkVersions demands that a replacement with a condition follows the version that it names.
func (q *queueCheck) checkVersions() {
	for _, it := range q.inOrder {
		before := it.at.Offset
		sort.Slice(it.contents, func(i, j int) bool { return it.contents[i].version < it.contents[j].version })
		for _, content := range it.contents {
			if content.op.IfVersion != before {
				q.add("overwritten", "%s replaced version %d of %s, and its version was %d", content.name,
					content.op.IfVersion, it.at, before)
			}
			before = content.version
		}
	}
}

// checkGuards demands that the queue ended where a guard says, but for elements that a rewrite may have withdrawn.
func (q *queueCheck) checkGuards() {
	for _, op := range q.ops {
		if op.Kind != Enqueue || !op.Guarded || op.Again || !q.elements[op.Names[0]].isKnown {
			continue
		}
		last, appended := int64(-1), q.elements[op.Names[0]]
		if op.IfLast != nil {
			last = op.IfLast.Offset
		}
		for _, it := range q.inOrder {
			if it.at.Offset <= last || it.at.Offset >= appended.at.Offset {
				continue
			}
			isCut := func(by *QueueOp) bool { return by.Kind == Rewrite }
			if !slices.ContainsFunc(q.mayBeGone(it, appended.exists), isCut) {
				q.add("guard", "%s was appended behind %s at %s, and not behind offset %d as its guard says", op.Names[0],
					it.name, it.at, last)
			}
		}
	}
}

// A change and its place in the log, at least of one of its records.
type landing struct {
	op     *QueueOp
	at     Position
	result int64
}

// landings are those changes whose place somebody learned.
func (q *queueCheck) landings() (all []landing) {
	for _, op := range q.ops {
		switch {
		case op.Again || op.Kind == Retrieve || op.Kind == AskFence:
		case op.Outcome == OK && op.At != nil:
			all = append(all, landing{op, *op.At, op.Return})
		case op.Outcome == OK:
		case op.Kind == Replace:
			if version, known := q.versions[op.Names[0]]; known {
				all = append(all, landing{op, Position{Offset: version, Term: -1}, never})
			}
		case len(op.Names) > 0 && q.elements[op.Names[0]].isKnown:
			all = append(all, landing{op, q.elements[op.Names[0]].at, never})
		}
	}
	return all
}

// checkFences demands that a change with a token stands between the fence of that token and the next one.
func (q *queueCheck) checkFences(landings []landing) {
	called := map[int64]*QueueOp{0: {}}
	var fences []landing
	for _, op := range q.ops {
		if op.Kind == Fence && op.Outcome != Fail {
			called[op.Token] = op
		}
	}
	for _, it := range landings {
		if it.op.Kind == Fence {
			fences = append(fences, it)
		}
	}
	sort.Slice(fences, func(i, j int) bool { return fences[i].at.Offset < fences[j].at.Offset })
	before := int64(0)
	for _, it := range fences {
		unknown := called[it.op.IfToken]
		isUnknown := unknown != nil && unknown.Outcome == Unknown && it.op.IfToken > before
		if it.op.IfToken != before && !isUnknown {
			q.add("fence", "fence %d of %s followed fence %d, and not %d as it says", it.op.Token, it.op.Client,
				before, it.op.IfToken)
		}
		before = it.op.Token
	}
	for _, it := range landings {
		for _, fence := range fences {
			if it.op.Token == 0 || it.op.Kind == Fence {
				continue
			}
			isLate := fence.op.Token > it.op.Token && fence.at.Offset < it.at.Offset
			isEarly := fence.op.Token == it.op.Token && fence.at.Offset > it.at.Offset
			if isLate || isEarly {
				q.add("fenced", "the %s of %s with token %d is at %s, and fence %d at %s", it.op.Kind, it.op.Client,
					it.op.Token, it.at, fence.op.Token, fence.at)
			}
		}
	}
	highest := int64(0)
	isElse := func(op *QueueOp) bool { return op.Kind != Fence || op.Outcome != OK }
	acknowledged := slices.DeleteFunc(slices.Clone(q.ops), isElse)
	later := slices.Clone(q.ops)
	sort.SliceStable(later, func(i, j int) bool { return later[i].Call < later[j].Call })
	for _, op := range later {
		for len(acknowledged) > 0 && acknowledged[0].Return < op.Call {
			highest = max(highest, acknowledged[0].Token)
			acknowledged = acknowledged[1:]
		}
		switch {
		case op.Outcome != OK || op.Kind == Retrieve || op.Kind == Fence:
		case op.Kind == AskFence && (called[op.Token] == nil || called[op.Token].Call > op.Return):
			q.add("fence", "%s was told of fence %d, which nobody had set", op.Client, op.Token)
		case op.Kind == AskFence && op.Token < highest:
			q.add("fence", "%s was told of fence %d after fence %d was set", op.Client, op.Token, highest)
		case op.Kind != AskFence && op.Token > 0 && op.Token < highest:
			q.add("fenced", "the %s of %s with token %d began after fence %d was set, and succeeded", op.Kind, op.Client,
				op.Token, highest)
		}
	}
}

// checkRefusals demands a cause of each refusal: a change of somebody that may have taken effect before.
func (q *queueCheck) checkRefusals() {
	for _, op := range q.ops {
		if op.Outcome != Fail || op.Unexpected {
			continue
		}
		if op.Again && op.Error != "fenced" && slices.Contains(explained, op.Error) {
			q.add("again", "%s was sent again by %s and refused, though it had been acknowledged", op.Names[0], op.Client)
		}
		explains := func(other *QueueOp) bool { return true }
		switch op.Error {
		case "fenced":
			explains = func(other *QueueOp) bool {
				mine := op.Token
				if op.Kind == Fence {
					mine = op.IfToken
				}
				return other.Kind == Fence && other.Token > mine
			}
		case "last-mismatch":
			explains = func(other *QueueOp) bool {
				if other.Kind != Enqueue {
					return other.Kind == Rewrite
				}
				it := q.elements[other.Names[len(other.Names)-1]]
				return !it.isKnown || op.IfLast == nil || it.at.Offset > op.IfLast.Offset
			}
		case "version-mismatch":
			explains = func(other *QueueOp) bool { return other.Kind == Replace && other.Targets[0] == op.Targets[0] }
		case "unknown-element":
			explains = func(other *QueueOp) bool {
				it := q.at[op.Targets[0].Offset]
				return it == nil || q.covers(other, it)
			}
		}
		isCause := func(other *QueueOp) bool {
			return other != op && other.Outcome != Fail && !isIdle(other) && other.Call < op.Return && explains(other)
		}
		if !slices.ContainsFunc(q.ops, isCause) {
			q.add("refusal", "the %s of %s was refused with %s, for no cause", op.Kind, op.Client, op.Error)
		}
	}
}

// checkEnd compares what a plain consumer got with the queue as native readers got it last.
func (q *queueCheck) checkEnd(ends Ends) {
	native := make(map[int64]Element)
	for _, it := range ends.Queues[q.queue] {
		native[it.Version] = it
	}
	shown := make(map[*element]bool)
	for _, record := range ends.Records {
		if record.Queue != q.queue {
			continue
		}
		if it, there := native[record.Offset]; there {
			if delete(native, record.Offset); it.Name != record.Name {
				q.add("kafka", "a consumer got %s at offset %d, and native readers %s", record.Name, record.Offset, it.Name)
			}
			shown[q.at[it.Position.Offset]] = true
			continue
		}
		it, isOld := q.recordOf(record)
		if it == nil {
			q.add("kafka", "a consumer got %s at offset %d, which nobody sent", record.Name, record.Offset)
			continue
		}
		shown[it] = true
		isTrim := func(by *QueueOp) bool { return by.Kind == Trim }
		isTaken := func(by *QueueOp) bool { return by.Kind != Trim && by.Outcome == OK }
		by := q.mayBeGone(it, never)
		if isOld || slices.ContainsFunc(by, isTaken) || !slices.ContainsFunc(by, isTrim) {
			q.add("kafka", "a consumer got %s at offset %d, which is deleted or replaced", record.Name, record.Offset)
		}
	}
	for version, it := range native {
		q.add("kafka", "a consumer did not get %s at offset %d, and native readers did", it.Name, version)
	}
	for _, it := range q.inOrder {
		isTaken := func(by *QueueOp) bool { return by.Kind != Trim }
		if !shown[it] && it.exists != never && !slices.ContainsFunc(q.mayBeGone(it, never), isTaken) {
			q.add("kafka", "a consumer did not get %s at %s, which nobody took away", it.name, it.at)
		}
	}
}

// recordOf returns the element of a record, and true if the record is not its latest content.
func (q *queueCheck) recordOf(record Record) (*element, bool) {
	it := q.elements[record.Name]
	if op := q.replacements[record.Name]; op != nil && op.Outcome != Fail {
		it = q.at[op.Targets[0].Offset]
	}
	if it == nil || it.op.Outcome == Fail {
		return nil, false
	}
	isLater := func(other content) bool { return other.version > record.Offset }
	return it, slices.ContainsFunc(it.contents, isLater)
}

// checkLandings demands that a change stands in the log behind those that were acknowledged before its call, and that
// terms and entries never fall. It takes all queues of a log together.
func checkLandings(wrong *findings, partition int32, all []landing) {
	sort.Slice(all, func(i, j int) bool { return all[i].at.Offset > all[j].at.Offset })
	earliest, above := landing{result: never}, Position{Term: math.MaxInt32, Entry: never}
	for _, it := range all {
		if earliest.result < it.op.Call {
			wrong.add("order", "queues of partition %d: the %s of %s, at %s, was acknowledged before the %s of %s, at %s, was sent",
				partition, earliest.op.Kind, earliest.op.Client, earliest.at, it.op.Kind, it.op.Client, it.at)
		}
		if it.result < earliest.result {
			earliest = it
		}
		if it.at.Term < 0 {
			continue // of a replacement the version alone is known
		}
		if it.at.Term > above.Term || it.at.Entry > above.Entry || it.at.Entry > it.at.Offset {
			wrong.add("term", "queues of partition %d: position %s is before %s", partition, it.at, above)
		}
		above = it.at
	}
}
