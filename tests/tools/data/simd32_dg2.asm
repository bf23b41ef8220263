//.kernel dots
//.thread_config numGRF=128, numAcc=4, numSWSB=16
(f1.0)  goto (32|M0)                         _0_007            _0_007                                // $11
// B003: [inDivergent],  Preds:{B002},  Succs:{B006}
_0_008:
        mov (16|M0)              r15.0<1>:ud   0x0:ud                                                // $13
        mov (16|M16)             r17.0<1>:f    0x0:f                               {Compacted}       // $14
        goto (32|M0)                         _0_007            _0_009                                // $15
// B004: [inDivergent],  Preds:{B002},  Succs:{B005}
_0_007:
        join (32|M0)                         _0_009                                                  //
L496:
        mov (16|M0)              r15.0<1>:ud   0x0:ud                                                // $18
        mov (16|M16)             r17.0<1>:f    0x0:f                               {Compacted}       // $19
(W)     mov (1|M0)               r4.1<1>:d     0:w                                                   // $17
// B005: [inDivergent],  Preds:{B005, B004},  Succs:{B006, B005}
_0_010:
        add3 (16|M0)             r20.0<1>:d    r4.1<0;0>:d       r5.0<1;0>:d       r7.0<0>:d        {I@1} // $24 R{} IR{}{E:1,E:1,O:1,},  R{r4,r7,} IR{} {BC=1}
        add3 (16|M16)            r22.0<1>:d    r4.1<0;0>:d       r9.0<1;0>:d       r7.0<0>:d         // $25
(W)     shl (1|M0)               r8.0<1>:d     r4.1<0;1,0>:d     2:w               {Compacted}       // $21
        shl (16|M0)              r20.0<1>:d    r20.0<1;1,0>:d    2:w               {Compacted,I@3}   // $26
        shl (16|M16)             r22.0<1>:d    r22.0<1;1,0>:d    2:w               {Compacted,I@3}   // $27
(W)     send.dc0 (1|M0)          r19      r8      null:0  0x0            0x02110800           {A@3,$3} // wr:1+0, rd:1; byte gathering read 32b // $23
        send.dc1 (16|M0)         r24      r20     null:0  0x0            0x04205E00           {A@2,$4} // wr:2+0, rd:2; untyped surface read with x // $29
        send.dc1 (16|M16)        r26      r22     null:0  0x0            0x04205E00           {A@1,$5} // wr:2+0, rd:2; untyped surface read with x // $31
(W)     add (1|M0)               r4.1<1>:d     r4.1<0;1,0>:d     1:w               {Compacted}       // $34
(W)     cmp (16|M0)   (lt)f0.0   null<1>:d     r4.1<0;1,0>:d     r8.4<0;1,0>:d    {I@1}              // $35
(W)     cmp (16|M16)  (lt)f0.0   null<1>:d     r4.1<0;1,0>:d     r8.4<0;1,0>:d                       // $36
        sync.nop                             null                             {Compacted,$4.dst}     // $32
        mad (16|M0)              r15.0<1>:f    r15.0<1;0>:f      r24.0<1;0>:f      r19.0<0>:f       {Compacted,$3.dst} // $32
        sync.nop                             null                             {Compacted,$5.dst}     // $33
        mad (16|M16)             r17.0<1>:f    r17.0<1;0>:f      r26.0<1;0>:f      r19.0<0>:f       {Compacted,F@2} // $33
(f0.0)  goto.b (32|M0)                       _0_009            _0_010                                // $37
// B006: Preds:{B005, B003},  Succs:{}
_0_009:
        join (32|M0)                         L744                                                    //
L744:
