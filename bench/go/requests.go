// Sends requests as clients send them, and says how many a broker answered: the load of `python -m bench.requests`.
//
// Every connection has one request in flight. Each request has a correlation id, a time, a key, a size and bytes of its
// own, and goes to the next of the partitions in turn; the versions of -versions take turns, too. A request is made
// while the answer to the one before it is on its way, so that a broker never waits for that.
//
// On its standard output: "begin" when the warm-up is over, "end" when the time is, then one line of JSON. Whoever
// measures the broker's CPU looks at these moments.
package main

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand"
	"net"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type wire struct {
	b        []byte
	flexible bool
}

func (w *wire) i8(v int8)   { w.b = append(w.b, byte(v)) }
func (w *wire) i16(v int16) { w.b = binary.BigEndian.AppendUint16(w.b, uint16(v)) }
func (w *wire) i32(v int32) { w.b = binary.BigEndian.AppendUint32(w.b, uint32(v)) }
func (w *wire) i64(v int64) { w.b = binary.BigEndian.AppendUint64(w.b, uint64(v)) }
func (w *wire) varint(v int64) {
	w.b = binary.AppendVarint(w.b, v)
}

// The length of an array or of bytes; -1 is null.
func (w *wire) length(n int) {
	if w.flexible {
		w.b = binary.AppendUvarint(w.b, uint64(n+1))
	} else {
		w.i32(int32(n))
	}
}

// A text; nil is null.
func (w *wire) text(s *string) {
	n := -1
	if s != nil {
		n = len(*s)
	}
	if w.flexible {
		w.b = binary.AppendUvarint(w.b, uint64(n+1))
	} else {
		w.i16(int16(n))
	}
	if s != nil {
		w.b = append(w.b, *s...)
	}
}

func (w *wire) tags() {
	if w.flexible {
		w.b = append(w.b, 0)
	}
}

type options struct {
	address, kind, topic string
	versions             []int16
	topicID              []byte
	partitions           int32
	connections          int
	seconds, warmUp      float64
	idempotent           bool
	acks                 int16
	tls                  bool
	user, password       string
}

type client struct {
	o           *options
	number      int
	name        string
	random      *rand.Rand
	correlation int32
	turn        int32
	producer    int64
	sequences   []int32
	ends        []int64 // by partition: where its log ended, as far as answers told
	record      wire
	batch       wire
	value       []byte
}

// One batch of one record, 60 to 180 bytes of value under a key of 8 to 24.
func (c *client) oneBatch(partition int32) []byte {
	r := &c.record
	r.b = r.b[:0]
	keyBytes, valueBytes := 8+c.random.Intn(17), 60+c.random.Intn(121)
	c.random.Read(c.value[:keyBytes+valueBytes])
	r.i8(0)
	r.varint(0)
	r.varint(0)
	r.varint(int64(keyBytes))
	r.b = append(r.b, c.value[:keyBytes]...)
	r.varint(int64(valueBytes))
	r.b = append(r.b, c.value[keyBytes:keyBytes+valueBytes]...)
	r.varint(0)
	b := &c.batch
	b.b = b.b[:0]
	now := time.Now().UnixMilli()
	b.i64(0)
	b.i32(0) // length, below
	b.i32(-1)
	b.i8(2)
	b.i32(0) // checksum, below
	b.i16(0)
	b.i32(0)
	b.i64(now)
	b.i64(now)
	if c.o.idempotent {
		b.i64(c.producer)
		b.i16(0)
		b.i32(c.sequences[partition])
		c.sequences[partition]++
	} else {
		b.i64(-1)
		b.i16(-1)
		b.i32(-1)
	}
	b.i32(1)
	b.varint(int64(len(r.b)))
	b.b = append(b.b, r.b...)
	binary.BigEndian.PutUint32(b.b[8:], uint32(len(b.b)-12))
	binary.BigEndian.PutUint32(b.b[17:], crc32.Checksum(b.b[21:], castagnoli))
	return b.b
}

func (c *client) header(w *wire, key, version int16, flexibleFrom int16) {
	w.b = append(w.b[:0], 0, 0, 0, 0)
	c.correlation++
	w.i16(key)
	w.i16(version)
	w.i32(c.correlation)
	w.flexible = false
	w.text(&c.name)
	w.flexible = version >= flexibleFrom
	w.tags()
}

func (c *client) topic(w *wire, version, idsFrom int16) {
	if version >= idsFrom {
		w.b = append(w.b, c.o.topicID...)
	} else {
		w.text(&c.o.topic)
	}
}

func (c *client) request(w *wire) {
	o := c.o
	version := o.versions[int(c.turn)%len(o.versions)]
	// Versions and partitions take turns independently of each other.
	partition := (c.turn/int32(len(o.versions)) + int32(c.number)) % o.partitions
	c.turn++
	switch o.kind {
	case "produce":
		batch := c.oneBatch(partition)
		c.header(w, 0, version, 9)
		w.text(nil)
		w.i16(o.acks)
		w.i32(30000)
		w.length(1)
		c.topic(w, version, 13)
		w.length(1)
		w.i32(partition)
		w.length(len(batch))
		w.b = append(w.b, batch...)
		w.tags()
		w.tags()
		w.tags()
	case "metadata":
		c.header(w, 3, version, 9)
		w.length(1)
		if version >= 10 {
			w.b = append(w.b, make([]byte, 16)...)
		}
		w.text(&o.topic)
		w.tags()
		if version >= 4 {
			w.i8(0)
		}
		if version >= 8 && version <= 10 {
			w.i8(0)
		}
		if version >= 8 {
			w.i8(0)
		}
		w.tags()
	case "fetch":
		c.header(w, 1, version, 12)
		if version <= 14 {
			w.i32(-1)
		}
		w.i32(0) // wait
		w.i32(1)
		w.i32(1 << 20)
		w.i8(0)
		if version >= 7 {
			w.i32(0)
			w.i32(-1)
		}
		w.length(1)
		c.topic(w, version, 13)
		w.length(1)
		w.i32(partition)
		if version >= 9 {
			w.i32(-1)
		}
		end := c.ends[partition]
		w.i64(c.random.Int63n(end + 1 - end/2)) // one of the older half, so that there is a record behind it
		if version >= 12 {
			w.i32(-1)
		}
		if version >= 5 {
			w.i64(-1)
		}
		w.i32(1) // the first batch, and no more
		w.tags()
		w.tags()
		if version >= 7 {
			w.length(0)
		}
		if version >= 11 {
			none := ""
			w.text(&none)
		}
		w.tags()
	}
	binary.BigEndian.PutUint32(w.b, uint32(len(w.b)-4))
}

func (c *client) saslPlain(conn net.Conn) error {
	var w wire
	c.header(&w, 17, 1, 99)
	mechanism := "PLAIN"
	w.text(&mechanism)
	binary.BigEndian.PutUint32(w.b, uint32(len(w.b)-4))
	if _, err := conn.Write(w.b); err != nil {
		return err
	}
	if _, err := readAnswer(conn, make([]byte, 4096)); err != nil {
		return err
	}
	c.header(&w, 36, 0, 99)
	w.length(len(c.o.user) + len(c.o.password) + 2)
	w.b = append(w.b, "\x00"+c.o.user+"\x00"+c.o.password...)
	binary.BigEndian.PutUint32(w.b, uint32(len(w.b)-4))
	if _, err := conn.Write(w.b); err != nil {
		return err
	}
	answer, err := readAnswer(conn, make([]byte, 4096))
	if err == nil && binary.BigEndian.Uint16(answer[4:]) != 0 {
		err = fmt.Errorf("the broker refused the password of %s", c.o.user)
	}
	return err
}

func readAnswer(from io.Reader, buffer []byte) ([]byte, error) {
	have := 0
	for have < 4 || have < int(binary.BigEndian.Uint32(buffer))+4 {
		if have >= 4 && int(binary.BigEndian.Uint32(buffer))+4 > len(buffer) {
			return nil, fmt.Errorf("an answer of %d bytes", binary.BigEndian.Uint32(buffer))
		}
		n, err := from.Read(buffer[have:])
		if err != nil {
			return nil, err
		}
		have += n
	}
	return buffer[4:have], nil
}

// Whether an answer tells an error, where the first of it stands in an answer about one partition or topic.
func (c *client) errorOf(answer []byte, version int16) int16 {
	at := 4
	name := len(c.o.topic)
	switch c.o.kind {
	case "produce":
		if version >= 9 {
			at += 1 + 1 // header's tags; topics
			if version >= 13 {
				at += 16
			} else {
				at += 1 + name
			}
			at += 1 + 4
		} else {
			at += 4 + 2 + name + 4 + 4
		}
	case "fetch":
		if version >= 12 {
			at += 1 + 4 + 2 + 4 + 1
			if version >= 13 {
				at += 16
			} else {
				at += 1 + name
			}
			at += 1 + 4
		} else {
			at += 4
			if version >= 7 {
				at += 2 + 4
			}
			at += 4 + 2 + name + 4 + 4
		}
	default:
		return 0
	}
	return int16(binary.BigEndian.Uint16(answer[at:]))
}

type result struct {
	done  int64
	times []float64
	err   error
}

func (c *client) run(ready, begun *sync.WaitGroup, counting, ended *atomic.Bool) (found result) {
	o := c.o
	var conn net.Conn
	if o.tls {
		conn, found.err = tls.Dial("tcp", o.address, &tls.Config{InsecureSkipVerify: true})
	} else {
		conn, found.err = net.Dial("tcp", o.address)
	}
	if found.err == nil && o.user != "" {
		found.err = c.saslPlain(conn)
	}
	ready.Done()
	if found.err != nil {
		return
	}
	defer conn.Close()
	begun.Wait()
	var w [2]wire
	buffer := make([]byte, 64*1024)
	c.request(&w[0])
	for i := 0; !ended.Load(); i++ {
		version := int16(binary.BigEndian.Uint16(w[i%2].b[6:]))
		counts := counting.Load()
		start := time.Now()
		if _, found.err = conn.Write(w[i%2].b); found.err != nil {
			return
		}
		sent := c.correlation
		c.request(&w[(i+1)%2])
		var answer []byte
		if answer, found.err = readAnswer(conn, buffer); found.err != nil {
			return
		}
		if int32(binary.BigEndian.Uint32(answer)) != sent {
			found.err = fmt.Errorf("an answer to request %d came in the place of %d's", binary.BigEndian.Uint32(answer), sent)
			return
		}
		if code := c.errorOf(answer, version); code != 0 {
			found.err = fmt.Errorf("%s version %d was answered with error %d", o.kind, version, code)
			return
		}
		if counts {
			found.done++
			if found.done%5 == 0 {
				found.times = append(found.times, float64(time.Since(start).Microseconds()))
			}
		}
	}
	return
}

func cpu() float64 {
	var used syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return float64(used.Utime.Sec+used.Stime.Sec) + float64(used.Utime.Usec+used.Stime.Usec)/1e6
}

func main() {
	var o options
	var versions, id, ends string
	var producers int64
	var acks int
	flag.StringVar(&o.address, "address", "", "host:port")
	flag.StringVar(&o.kind, "kind", "produce", "produce, metadata or fetch")
	flag.StringVar(&o.topic, "topic", "", "its name")
	flag.StringVar(&id, "topic-id", "00000000000000000000000000000000", "its id, in hex")
	flag.StringVar(&versions, "versions", "", "like 7,13: they take turns")
	flag.StringVar(&ends, "ends", "", "for fetch: the partitions' end offsets, like 100,100")
	partitions := flag.Int("partitions", 4, "of the topic, written to or read from in turns")
	flag.IntVar(&o.connections, "connections", 16, "each with one request in flight")
	flag.Float64Var(&o.seconds, "seconds", 1, "that count")
	flag.Float64Var(&o.warmUp, "warm-up", 0.5, "seconds before them")
	flag.BoolVar(&o.idempotent, "idempotent", false, "batches have a producer id and sequences")
	flag.Int64Var(&producers, "producer", 1<<40, "the first producer id of them")
	flag.IntVar(&acks, "acks", -1, "of produce")
	flag.BoolVar(&o.tls, "tls", false, "over TLS, whoever the broker says it is")
	flag.StringVar(&o.user, "user", "", "log in with PLAIN")
	flag.StringVar(&o.password, "password", "", "the password of it")
	flag.Parse()
	o.partitions, o.acks = int32(*partitions), int16(acks)
	o.topicID, _ = hex.DecodeString(id)
	for _, text := range strings.Split(versions, ",") {
		v, err := strconv.Atoi(text)
		if err != nil {
			fmt.Fprintln(os.Stderr, "-versions:", err)
			os.Exit(2)
		}
		o.versions = append(o.versions, int16(v))
	}
	known := make([]int64, o.partitions)
	for i, text := range strings.Split(ends, ",") {
		if i < len(known) && text != "" {
			known[i], _ = strconv.ParseInt(text, 10, 64)
		}
	}
	var ready, begun, over sync.WaitGroup
	var counting, ended atomic.Bool
	results := make([]result, o.connections)
	begun.Add(1)
	for i := range results {
		ready.Add(1)
		over.Add(1)
		c := &client{
			o: &o, number: i, name: fmt.Sprintf("bench-%d", i), random: rand.New(rand.NewSource(int64(i))),
			producer: producers + int64(i), sequences: make([]int32, o.partitions), ends: known, value: make([]byte, 256),
		}
		go func(i int) {
			results[i] = c.run(&ready, &begun, &counting, &ended)
			over.Done()
		}(i)
	}
	ready.Wait()
	begun.Done()
	out := bufio.NewWriter(os.Stdout)
	say := func(line string) { out.WriteString(line + "\n"); out.Flush() }
	time.Sleep(time.Duration(o.warmUp * 1e9))
	own := cpu()
	counting.Store(true)
	say("begin")
	start := time.Now()
	time.Sleep(time.Duration(o.seconds * 1e9))
	counting.Store(false)
	elapsed := time.Since(start).Seconds()
	own = cpu() - own
	say("end")
	ended.Store(true)
	over.Wait()
	var done int64
	var times []float64
	for _, one := range results {
		if one.err != nil {
			fmt.Fprintln(os.Stderr, one.err)
			os.Exit(1)
		}
		done += one.done
		times = append(times, one.times...)
	}
	sort.Float64s(times)
	at := func(share float64) float64 {
		if len(times) == 0 {
			return 0
		}
		return times[int(float64(len(times)-1)*share)]
	}
	line, _ := json.Marshal(map[string]float64{
		"done": float64(done), "rate": float64(done) / elapsed, "p50": at(0.5), "p99": at(0.99),
		"own": own / float64(done) * 1e6,
	})
	say(string(line))
}
