// mesh_history.js: what is seen from one look at the mesh to the next: rates and busy shares of the last minute.
//
// The scheduler counts since its start; a rate is what two looks differ by. After a restart of the scheduler, or if a count falls because
// another service took a place, history begins anew.
export const SPAN_US = 60e6;
const RATE_US = 5e6;

function difference(before, after) {
    return after >= before ? after - before : 0;
}

export class History {
    constructor() {
        this.looks = [];
    }

    // Returns whether the look is a new one: the gateway may give the same answer twice.
    add(mesh) {
        const last = this.looks.at(-1);
        if (last && last.scheduler_incarnation !== mesh.scheduler_incarnation) this.looks = [];
        else if (last && mesh.now_us <= last.now_us) return false;
        this.looks.push(mesh);
        while (this.looks.length > 2 && mesh.now_us - this.looks[0].now_us > SPAN_US) this.looks.shift();
        return true;
    }

    // The look that begins the time over which rates are taken.
    base() {
        const now = this.looks.at(-1).now_us;
        return this.looks.find((look) => now - look.now_us <= RATE_US) ?? this.looks.at(-1);
    }

    seconds() {
        return (this.looks.at(-1).now_us - this.base().now_us) / 1e6;
    }

    // A count's growth a second; null: there is one look only.
    rate(count) {
        const seconds = this.seconds();
        return seconds > 0 ? difference(count(this.base()), count(this.looks.at(-1))) / seconds : null;
    }

    // The mean over the same time of one count's growth for each unit of another's; null: nothing grew.
    mean(sum, count) {
        const grown = difference(count(this.base()), count(this.looks.at(-1)));
        return grown > 0 ? difference(sum(this.base()), sum(this.looks.at(-1))) / grown : null;
    }

    // Shares of the time between two looks: [{ from, to, share }], times in microseconds of the scheduler's clock. busy(look): its count in
    // microseconds, or undefined.
    shares(busy) {
        const out = [];
        for (let i = 1; i < this.looks.length; i++) {
            const a = this.looks[i - 1], b = this.looks[i], before = busy(a), after = busy(b);
            if (before === undefined || after === undefined) continue;
            out.push({ from: a.now_us, to: b.now_us, share: Math.min(1, difference(before, after) / (b.now_us - a.now_us)) });
        }
        return out;
    }
}
